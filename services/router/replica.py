"""One replica: reached, asked what it is, followed by its health, and lost and found again.

Knows nothing of what it is asked for. Whoever runs `follow` owns it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.core.errors import HandshakeError, SlipstreamError
from slipstream.core.server_info import ReplicaInfo, ReplicaRole, ReplicaState
from slipstream.rpc.status import error_from

CONNECT_LIMIT_S = 5.0
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0
_LOG = logging.getLogger("slipstream.router")


class Described(Protocol):
    """What a replica said of itself."""

    @property
    def name(self) -> str:
        """Model of a target, kind of a draft."""
        ...

    @property
    def incarnation(self) -> str:
        """Its process."""
        ...


D = TypeVar("D", bound=Described)
D_co = TypeVar("D_co", bound=Described, covariant=True)


class Probe(Protocol[D_co]):
    """How replicas of a role are asked what they are."""

    @property
    def role(self) -> ReplicaRole:
        """What they are there for."""
        ...

    @property
    def service(self) -> str:
        """Full name of the service they have."""
        ...

    async def describe(self, channel: grpc.aio.Channel) -> D_co:
        """What the replica is. Raises `HandshakeError` for one that can't be used."""
        ...


class Replica(Generic[D]):
    """A replica as the router sees it."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        probe: Probe[D],
        *,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after every change of the state."""
        self.address = address
        self.channel = channel
        self.state = ReplicaState.CONNECTING
        self.reason = "not reached yet"
        self.described: D | None = None
        """What it said of itself last, whatever became of it since."""
        self.num_requests = 0
        self.num_started = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._probe = probe
        self._on_change = on_change

    @property
    def name(self) -> str:
        """For errors: target 10.0.0.7:50052."""
        return f"{self._probe.role.value} {self.address}"

    @property
    def info(self) -> ReplicaInfo:
        """For whoever asks the router."""
        described = self.described
        return ReplicaInfo(
            role=self._probe.role,
            address=self.address,
            state=self.state,
            reason=self.reason,
            model="" if described is None else described.name,
            num_requests=self.num_requests,
            incarnation="" if described is None else described.incarnation,
        )

    @contextmanager
    def used(self) -> Iterator[None]:
        """Count a request for as long as it runs here."""
        self.num_requests += 1
        self.num_started += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if not self.num_requests:
                self.idle.set()

    def retire(self) -> None:
        """Take nothing new."""
        self._set(ReplicaState.DRAINING, "removed from the list")

    async def follow(self) -> None:
        """Reach it, and follow what it says of itself, until cancelled."""
        wait_s = FIRST_WAIT_S
        while True:
            reason = await self._attend()
            if self.state is not ReplicaState.CONNECTING:
                wait_s = FIRST_WAIT_S
            self._set(ReplicaState.CONNECTING, reason)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _attend(self) -> str:
        """Follow one connection to its end; why it ended."""
        request = health_pb2.HealthCheckRequest(service=self._probe.service)
        watch: Any = health_pb2_grpc.HealthStub(self.channel).Watch(request)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                health = await watch.read()
            if health is not grpc.aio.EOF:
                await self._follow(watch, health)
            return "it has ended the connection"
        except TimeoutError:
            return f"it did not answer within {CONNECT_LIMIT_S:g} s"
        except grpc.aio.AioRpcError as error:
            return str(error_from(error))
        except SlipstreamError as error:
            return f"it did not say what it is: {error}"
        finally:
            watch.cancel()

    async def _follow(self, watch: Any, health: Any) -> None:
        is_described = False
        while health is not grpc.aio.EOF:
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                state = ReplicaState.DRAINING if is_described else ReplicaState.CONNECTING
                self._set(state, "it says that it is not serving")
            elif is_described or await self._describe():
                is_described = True
                self._set(ReplicaState.READY, "")
            health = await watch.read()

    async def _describe(self) -> bool:
        """Ask what it is; False for one that can't be used. It may come back as another one."""
        try:
            self.described = await self._probe.describe(self.channel)
        except HandshakeError as error:
            self._set(ReplicaState.UNFIT, str(error))
            return False
        return True

    def _set(self, state: ReplicaState, reason: str) -> None:
        if (state, reason) == (self.state, self.reason):
            return
        if state is not self.state:
            _LOG.info("%s is %s%s", self.name, state.value, f": {reason}" if reason else "")
        self.state, self.reason = state, reason
        self._on_change()
