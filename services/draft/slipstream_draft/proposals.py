"""The stream on which a target requests the proposals of granted rounds, opened by the draft."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from slipstream.core.errors import SlipstreamError
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import draft_pb2, target_pb2
from slipstream_draft.kv_receiver import KvAddress
from slipstream_draft.kv_sources import Channels

_METHOD = "/slipstream.rpc.v1.TargetService/StreamProposals"
_LOG = logging.getLogger("slipstream.draft")

Propose = Callable[[draft_pb2.Propose], Awaitable[draft_pb2.Proposed]]


class ProposalCalls:
    """Answers one target at a time, for one request. End it. What goes wrong ends the stream, until
    the router's next request for a proposal opens another one."""

    def __init__(self, channels: Channels, propose: Propose) -> None:
        self._channels, self._propose = channels, propose
        self._source: KvAddress | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, source: KvAddress) -> None:
        """Answer the target at this address from now on. Again is fine."""
        if source == self._source and self._task is not None and not self._task.done():
            return
        self.end()
        self._source = source
        self._task = asyncio.get_running_loop().create_task(self._answer(source))

    def end(self) -> None:
        """End the stream. Again is fine."""
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, source: KvAddress) -> None:
        opening = message_of(target_pb2.OpenProposals, source, protocol_version=PROTOCOL_VERSION)
        try:
            async with self._channels.to(source.address) as channel:
                method: Any = channel.stream_stream(
                    _METHOD,
                    request_serializer=target_pb2.StreamProposalsRequest.SerializeToString,
                    response_deserializer=target_pb2.StreamProposalsResponse.FromString,
                )
                await self._keep_answering(method(), opening)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _LOG.debug("no more requests from %s: %s", source.address, error)

    async def _keep_answering(self, call: Any, opening: target_pb2.OpenProposals) -> None:
        try:
            await call.write(target_pb2.StreamProposalsRequest(open=opening))
            while (request := await call.read()) is not grpc.aio.EOF:
                proposed = await self._proposed(request.propose)
                await call.write(target_pb2.StreamProposalsRequest(proposed=proposed))
        finally:
            call.cancel()

    async def _proposed(self, message: draft_pb2.Propose) -> draft_pb2.Proposed:
        try:
            return await self._propose(message)
        except SlipstreamError as error:
            _LOG.info("a granted round goes without a proposal: %s", error)
            return draft_pb2.Proposed()
