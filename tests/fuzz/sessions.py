"""Sessions as a state machine: calls in any order to two routers over one store that loses all.

Whatever is called, tokens are those of plain decoding, refusals have their code, and at the end
nothing is held.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fuzz.world import ENDLESS, Tokens, World
from slipstream.rpc.v1 import common_pb2
from slipstream.rpc.v1 import generation_pb2 as pb
from support.services import fleet
from support.state.redis_server import RedisServer

CODE = grpc.StatusCode
_TRIES = 200
_PROMPTS = st.lists(st.integers(3, 258), min_size=1, max_size=6)
_LENGTHS = st.integers(1, 20)
_ROUTERS = st.integers(0, 1)
_MODES = st.sampled_from((pb.SPECULATION_MODE_FORCED, pb.SPECULATION_MODE_OFF))


@dataclass
class Conversation:
    """A session as it should be."""

    name: str
    tokens: Tokens = ()
    """All that is final in it."""
    last: pb.Generation | None = None
    """Its newest request."""
    answer: Tokens = ()


class Refusal(Exception):
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code


def run(world: World, **how: Any) -> int:
    """Try calls in any order; how many calls it were. `how` are settings, and maybe a `seed`."""
    machine: Any = type("Machine", (SessionMachine,), {"world": world})
    if (number := how.pop("seed", None)) is not None:
        machine = seed(number)(machine)
    checks = list(HealthCheck)
    # Not made smaller: that takes minutes, and the seed shows the same calls again.
    fixed = {"phases": [Phase.generate], "report_multiple_bugs": False, "database": None}
    how = {"deadline": None, "suppress_health_check": checks, **fixed, **how}
    run_state_machine_as_test(machine, settings=settings(**how))
    return int(machine.num_steps)


class SessionMachine(RuleBasedStateMachine):
    """Rules are calls, and losses of the store. See `run`."""

    world: World
    num_steps = 0
    """Of all runs."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[Conversation] = []
        self._gone: list[str] = []

    @rule(prompt=_PROMPTS, length=_LENGTHS, mode=_MODES, at=_ROUTERS)
    def begin(self, prompt: list[int], length: int, mode: int, at: int) -> None:
        session = Conversation(uuid.uuid4().hex)
        self._turn(session, _asked(session, prompt, length, mode), at)
        self._open.append(session)

    @precondition(lambda self: self._open)
    @rule(data=st.data(), prompt=_PROMPTS, length=_LENGTHS, mode=_MODES, at=_ROUTERS)
    def go_on(self, data: Any, prompt: list[int], length: int, mode: int, at: int) -> None:
        session = data.draw(st.sampled_from(self._open))
        self._turn(session, _asked(session, prompt, length, mode), at)

    @precondition(lambda self: self._open)
    @rule(data=st.data(), prompt=_PROMPTS, read=st.integers(0, 12), at=_ROUTERS, then=_ROUTERS)
    def break_off(self, data: Any, prompt: list[int], read: int, at: int, then: int) -> None:
        """A turn whose reader leaves, and comes back for the rest, maybe to the other router."""
        session = data.draw(st.sampled_from(self._open))
        asked = _asked(session, prompt, 20, pb.SPECULATION_MODE_FORCED)
        begun = self._call(lambda: self._stream(asked, at, most=read))
        asked.num_received_tokens = len(begun)
        rest = self._call(lambda: self._stream(asked, then))
        asked.num_received_tokens = 0
        self._check(session, asked, (*begun, *rest))

    @precondition(lambda self: self._open)
    @rule(data=st.data(), at=_ROUTERS)
    def repeat(self, data: Any, at: int) -> None:
        """The newest request again gets its answer again, and nothing runs twice."""
        session = data.draw(st.sampled_from(self._open))
        assert self._call(lambda: self._generate(session.last, at)) == session.answer

    @precondition(lambda self: self._open)
    @rule(data=st.data(), at=_ROUTERS)
    def reuse(self, data: Any, at: int) -> None:
        """Another request under the id of the newest is refused; so is a session that exists."""
        session = data.draw(st.sampled_from(self._open))
        other = _asked(session, [7, 7], 3, pb.SPECULATION_MODE_OFF)
        other.request_id = session.last.request_id
        self._refused(CODE.ALREADY_EXISTS, lambda: self._generate(other, at))
        again = _asked(session, [7, 7], 3, pb.SPECULATION_MODE_OFF)
        again.session.create = True
        self._refused(CODE.ALREADY_EXISTS, lambda: self._generate(again, at))

    @precondition(lambda self: self._open)
    @rule(data=st.data(), at=_ROUTERS)
    def close(self, data: Any, at: int) -> None:
        """A session that is forgotten is not found again."""
        session = data.draw(st.sampled_from(self._open))
        self._open.remove(session)
        self._gone.append(session.name)
        self._call(lambda: self._delete(session.name, at))

    @precondition(lambda self: self._gone)
    @rule(data=st.data(), at=_ROUTERS)
    def go_on_with_none(self, data: Any, at: int) -> None:
        """A turn in a session that was closed or lost."""
        name = data.draw(st.sampled_from(self._gone))
        asked = _asked(Conversation(name, (1,)), [5], 2, pb.SPECULATION_MODE_OFF)
        self._refused(CODE.NOT_FOUND, lambda: self._generate(asked, at))
        self._refused(CODE.NOT_FOUND, lambda: self._delete(name, at))

    @rule(kill=st.booleans())
    def lose_all(self, kill: bool) -> None:
        """The store forgets everything, or is killed and comes back empty."""
        if kill:
            self.world.store.kill()
            self.world.store.start()
        else:
            self.world.store.call("FLUSHALL")
        self._gone += [session.name for session in self._open]
        self._open.clear()

    @rule(prompt=_PROMPTS, read=st.integers(1, 6), at=_ROUTERS)
    def lose_all_in_between(self, prompt: list[int], read: int, at: int) -> None:
        """The store forgets everything while a first turn runs, which goes on to its end.

        Where the router was at the end before the reader, the session is lost all the same.
        """
        session = Conversation(uuid.uuid4().hex)
        asked = _asked(session, prompt, 20, pb.SPECULATION_MODE_FORCED)
        self._gone += [each.name for each in self._open]
        self._open.clear()

        async def run() -> Tokens:
            return await self._stream(asked, at, after=(read, self.world.store))

        self._check(session, asked, self._call(run))
        with suppress(Refusal):
            self._call(lambda: self._delete(session.name, at))

    def teardown(self) -> None:
        """Forget all; then nothing is held."""
        for session in self._open:
            self._call(lambda session=session: self._delete(session.name, 0))
        self.world.run(lambda: fleet.eventually(self.world.is_idle, bool, 50))

    def _turn(self, session: Conversation, asked: pb.Generation, at: int) -> None:
        self._check(session, asked, self._call(lambda: self._generate(asked, at)))

    def _check(self, session: Conversation, asked: pb.Generation, got: Tokens) -> None:
        before = (*session.tokens, *asked.prompt.token_ids.ids)
        assert got == self.world.plain(before, asked.stopping.max_new_tokens)
        session.tokens, session.last, session.answer = (*before, *got), asked, got

    def _call(self, make: Any) -> Any:
        """The answer; a store that has just come back, and a reader just gone, take a moment."""
        type(self).num_steps += 1
        for _ in range(_TRIES):
            try:
                return self.world.run(make)
            except Refusal as refusal:
                is_busy = refusal.code is CODE.FAILED_PRECONDITION and "busy" in str(refusal)
                if refusal.code is not CODE.UNAVAILABLE and not is_busy:
                    raise
        raise AssertionError("the services stay unavailable")

    def _refused(self, code: grpc.StatusCode, make: Any) -> None:
        try:
            self._call(make)
        except Refusal as refusal:
            assert refusal.code is code, refusal
        else:
            raise AssertionError(f"{code.name} was due")

    async def _generate(self, asked: pb.Generation | None, at: int) -> Tokens:
        call = self.world.stubs[at].Generate(pb.GenerateRequest(generation=asked), timeout=50)
        return tuple((await _answered(call)).token_ids)

    async def _delete(self, name: str, at: int) -> None:
        request = pb.DeleteSessionRequest(session_id=name)
        await _answered(self.world.stubs[at].DeleteSession(request, timeout=50))

    async def _stream(
        self,
        asked: pb.Generation,
        at: int,
        *,
        most: int | None = None,
        after: tuple[int, RedisServer] | None = None,
    ) -> Tokens:
        """Read a stream to its end, or until there are so many tokens; then leave it."""
        request = pb.GenerateStreamRequest(generation=asked)
        call = self.world.stubs[at].GenerateStream(request, timeout=50)
        tokens: list[int] = []
        try:
            async for message in call:
                tokens += message.token_ids
                if most is not None and len(tokens) >= most:
                    break
                if after is not None and len(tokens) >= after[0]:
                    after[1].call("FLUSHALL")
                    after = None
        except grpc.aio.AioRpcError as error:
            raise Refusal(error.code(), error.details()) from None
        finally:
            call.cancel()
        return tuple(tokens)


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise Refusal(error.code(), error.details()) from None


def _asked(session: Conversation, prompt: list[int], length: int, mode: int) -> pb.Generation:
    """A request for the next turn of a session."""
    return pb.Generation(
        request_id=uuid.uuid4().hex,
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)),
        session=pb.SessionRef(session_id=session.name, create=not session.tokens),
        sampling=common_pb2.SamplingParams(logit_bias=ENDLESS),
        stopping=pb.StoppingCriteria(max_new_tokens=length),
        speculation=pb.SpeculationOptions(mode=mode),  # type: ignore[arg-type]
    )
