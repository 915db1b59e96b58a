"""Laws of a failover target: a lost target costs time, never tokens, and another one goes on."""

import pytest

from slipstream.core import errors
from slipstream.core.breaker import BreakerLimits, Breakers, InUse
from slipstream.core.failover import MAX_INTERNAL_ERRORS, MAX_LOSSES, FailoverTarget
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Session, Verdict, Verification
from slipstream.engine.thread import MAX_FAILED_STEPS

SESSION = Session("s", num_prompt_tokens=3, max_tokens=100)
LOST = errors.Unavailable("it is gone")
GUESS = Proposal(TokenTree.chain([7, 8]))


class Counter:
    """A target that says how many tokens it was told, until it is lost."""

    def __init__(self, name, lasts=None, error=LOST):
        self.name = name
        self.lasts = lasts
        self.error = error
        self.asked = []
        self.is_released = False

    async def verify(self, sequence, proposal):
        if self.lasts == len(self.asked):
            raise self.error
        self.asked.append(([*sequence.tokens], proposal))
        return Verdict((len(sequence),), 0)

    async def park(self, ttl_s):
        if self.error is not LOST:
            raise self.error

    async def release(self, session_id):
        self.is_released = True


class World:
    """A failover target, the replicas that it may use one after the other, and a clock."""

    def __init__(self, *targets, wait_s=5.0, remaining=None, shared=None):
        self.now = 0.0
        self.remaining = remaining
        self.first, *self.waiting = targets
        self.num_losses = self.num_pauses = 0
        limits = BreakerLimits(failures=1)
        self.shared = shared or Breakers(lambda: self.now, BreakerLimits())
        self.target = FailoverTarget(
            choose=self.choose,
            own=Breakers(lambda: self.now, limits),
            shared=self.shared,
            remaining=lambda: self.remaining,
            first=_used(self.first),
            pause=self.pause,
            on_loss=self.lost,
            wait_s=wait_s,
        )
        self.sequence = TokenSequence(SESSION, [0, 1, 2])

    def choose(self, excluded):
        fitting = [at for at in self.waiting if at.name not in excluded]
        if not fitting:
            return None
        self.waiting.remove(fitting[0])
        return _used(fitting[0])

    async def pause(self):
        self.num_pauses += 1
        self.now += 1.0

    def lost(self):
        self.num_losses += 1

    async def round(self, proposal=GUESS, session=SESSION):
        self.sequence.session = session
        verdict = await self.target.verify(self.sequence, proposal)
        self.sequence.append(verdict.tokens)
        return verdict


def _used(target):
    return InUse(target.name, target, target.park)


@pytest.mark.parametrize("lasts", range(6))
async def test_whenever_a_target_is_lost_the_tokens_are_those_of_one_that_never_was(lasts):
    world = World(Counter("a", lasts), Counter("b"))
    for _ in range(6):
        await world.round()
    assert world.sequence.tokens == list(range(9))


async def test_roots_that_a_lost_target_drew_are_not_those_of_the_next_one():
    other = Counter("b")
    world = World(Counter("a", 0), other)
    session = Session("s", 3, 100, verification=Verification.TARGET_INIT, num_roots=2)
    await world.round(session=session)
    assert other.asked[0][1] == Proposal()


@pytest.mark.parametrize(
    "kind",
    ["Unavailable", "DeadlineExceeded", "HandshakeError", "InternalError", "SessionOutOfSync"],
)
async def test_what_a_target_dies_of_is_counted_and_it_is_released(kind):
    first = Counter("a", 1, getattr(errors, kind)("x"))
    world = World(first, Counter("b"))
    await world.round()
    await world.round()
    assert (world.num_losses, first.is_released) == (1, True)


OWN = [errors.InvalidRequest("x"), errors.SessionTaken("x"), errors.PermissionDenied("x")]


@pytest.mark.parametrize(("error", "remaining"), [*((error, None) for error in OWN), (LOST, 0.0)])
async def test_what_is_the_request_s_own_fault_or_its_time_is_not_tried_elsewhere(error, remaining):
    other = Counter("b")
    world = World(Counter("a", 0, error), other, remaining=remaining)
    with pytest.raises(type(error)):
        await world.round()
    assert not other.asked


async def test_a_full_target_is_left_for_another_one_but_not_waited_for():
    full = errors.CapacityError("full")
    world = World(Counter("a", 0, full), Counter("b"))
    await world.round()
    assert world.num_losses == 0
    alone = World(Counter("a", 0, full))
    with pytest.raises(errors.CapacityError):
        await alone.round()
    assert alone.num_pauses == 0


async def test_each_full_target_is_asked_once_a_round_however_long_its_queue_was():
    class Busy(Counter):
        async def verify(self, sequence, proposal):
            world.now += 60.0
            world.waiting.append(self)
            self.asked.append(sequence)
            raise errors.CapacityError("the request waited 60 s for memory, the limit")

    targets = [Busy(name) for name in ("a", "b", "c")]
    world = World(*targets)
    with pytest.raises(errors.CapacityError):
        await world.round()
    assert [len(target.asked) for target in targets] == [1, 1, 1]
    assert world.num_losses == 0
    assert not world.shared.resting()


async def test_a_request_waits_for_a_target_to_come_back():
    world = World(Counter("a", 0), Counter("a"))
    await world.round()
    assert world.num_pauses == 1
    assert world.sequence.tokens == [0, 1, 2, 3]


FAILED = errors.InternalError("a step of the target failed")


@pytest.mark.parametrize(
    ("error", "num_targets", "num_tried"),
    [(LOST, MAX_LOSSES + 2, MAX_LOSSES + 1), (FAILED, MAX_FAILED_STEPS, MAX_INTERNAL_ERRORS)],
)
async def test_a_request_that_ends_targets_is_given_up_before_all(error, num_targets, num_tried):
    world = World(*(Counter(f"t{index}", 0, error) for index in range(num_targets)))
    with pytest.raises(type(error)):
        await world.round()
    assert len(world.waiting) == num_targets - num_tried > 0


async def test_a_released_failover_proxy_holds_no_replica_and_takes_none():
    first, other = Counter("a", 1), Counter("b")
    world = World(first, other)
    await world.round()
    await world.target.release("s")
    assert first.is_released
    assert world.waiting == [other]
    assert await world.target.park(1.0) is None


async def test_parking_names_the_replica_that_keeps_the_session_and_none_where_that_failed():
    kept, lost = Counter("a"), Counter("b", error=errors.Unavailable("x"))
    assert await World(kept).target.park(1.0) == "a"
    assert await World(lost).target.park(1.0) is None
    assert kept.is_released and lost.is_released


@pytest.mark.parametrize("error", [LOST, FAILED])
async def test_a_target_that_answers_no_one_is_not_the_first_that_others_ask(error):
    shared = Breakers(lambda: 0.0, BreakerLimits())
    for _ in range(BreakerLimits().failures):
        assert not shared.resting()
        world = World(Counter("a", 0, error), Counter("b"), shared=shared)
        await world.round()
    assert shared.resting() == {"a"}
