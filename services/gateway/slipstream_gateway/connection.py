"""One connection of the HTTP front, with a limit on every wait for its client.

uvicorn's own protocol has a limit only between two requests.
"""

import asyncio
import logging
from enum import Enum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream_gateway.config import HttpConfig
from slipstream_gateway.errors import HttpError
from slipstream_gateway.http_io import as_json

_LOG = logging.getLogger("slipstream.http")


class Phase(Enum):
    """Phase of a connection: what it waits for."""

    HEAD = "the head of a request"
    ANSWER = "a request's body and its answer, to the last byte,"
    REST = "the rest of a body that was answered already"
    IDLE = "another request"


class BoundedConnection(H11Protocol):
    """A connection that is cut off once a wait for its client takes too long.

    To the application that is a client that has left: what runs for it ends.
    """

    def __init__(self, *, limits: HttpConfig, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._waits_for: tuple[Phase, object] | None = None
        self._phase_limit: asyncio.TimerHandle | None = None
        self._send_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`. One connection too many gets an error, and is closed."""
        if len(self.connections) >= self._limits.max_connections:
            transport.write(_too_many(self._limits.max_connections))
            transport.close()
            return
        # Writing is paused from the first byte that the client does not take.
        transport.set_write_buffer_limits(high=1)
        super().connection_made(transport)
        self._bound_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        for limit in filter(None, (self._phase_limit, self._send_limit)):
            limit.cancel()
        if self.transport is not None:
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._bound_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._bound_phase()

    def send_400_response(self, msg: str) -> None:
        """See `H11Protocol`. A request that is served is left alone from here on; one whose answer
        has begun can have no other, nor can one to HEAD have a body: then it is cut off."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is not None and cycle.response_started:
            self.transport.abort()
            return
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._bound_send()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_limit is not None:
            self._send_limit.cancel()

    def _bound_phase(self) -> None:
        """Start the time limit of a phase, once for each request."""
        waits_for = self._phase(), self.cycle
        if waits_for == self._waits_for:
            return
        if self._phase_limit is not None:
            self._phase_limit.cancel()
        phase, _ = self._waits_for = waits_for
        limit_s = self._longest_s(phase)
        self._phase_limit = self.loop.call_later(limit_s, self._cut_off, phase, limit_s)

    def _phase(self) -> Phase:
        if self.conn.their_state is h11.IDLE:
            is_later = self.cycle is not None and not self.conn.trailing_data[0]
            return Phase.IDLE if is_later else Phase.HEAD
        is_answered = self.cycle is not None and self.cycle.response_complete
        is_sending = self.conn.their_state is h11.SEND_BODY
        return Phase.REST if is_answered and is_sending else Phase.ANSWER

    def _longest_s(self, phase: Phase) -> float:
        limits = self._limits
        return {
            Phase.HEAD: limits.header_timeout_s,
            Phase.ANSWER: limits.body_timeout_s + limits.timeout_s + limits.send_timeout_s,
            Phase.REST: limits.body_timeout_s,
            Phase.IDLE: limits.keep_alive_s,
        }[phase]

    def _bound_send(self) -> None:
        limit_s, unsent = self._limits.send_timeout_s, self.transport.get_write_buffer_size()
        self._send_limit = self.loop.call_later(limit_s, self._check_sent, unsent)

    def _check_sent(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._bound_send()
        else:
            limit_s = self._limits.send_timeout_s
            _LOG.info("a connection is cut off: nothing was read for %g s", limit_s)
            self.transport.abort()

    def _cut_off(self, phase: Phase, limit_s: float) -> None:
        if phase is not Phase.IDLE:
            _LOG.info("a connection is cut off: %s took longer than %g s", phase.value, limit_s)
        self.transport.abort()


def _too_many(limit: int) -> bytes:
    message = f"the server has {limit} connections, which is the limit"
    body = as_json(HttpError(message, code="too_many_connections", status=503).body())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
