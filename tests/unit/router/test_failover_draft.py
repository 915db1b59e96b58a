"""Laws of a failover draft: a lost draft costs speculation, never tokens, and it is asked again."""

import asyncio
from math import inf, nan

import pytest

from slipstream.core import errors
from slipstream.core.breaker import BreakerLimits, Breakers, InUse
from slipstream.core.failover import LEAVE_AFTER, FailoverDraft, reason_of
from slipstream.core.sequence import Delta
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal, Session, Shape, Verification
from support.models.deltas import ByDeltas

PLAN = Plan(max_depth=4, max_nodes=6)
SESSION = Session("s", num_prompt_tokens=3, max_tokens=20)


class Guesser:
    """A draft that answers what it was given, and remembers what it was told."""

    def __init__(self, name, *answers):
        self.name = name
        self.answers = list(answers)
        self.texts = []
        self.is_released = False
        self.parked_for = None

    async def propose(self, sequence, plan):
        self.texts.append([*sequence.tokens])
        answer = self.answers.pop(0) if self.answers else Proposal(TokenTree.chain([1]))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def park(self, ttl_s):
        self.parked_for = ttl_s
        if self.answers:
            raise self.answers.pop(0)

    async def release(self, session_id):
        self.is_released = True


class World:
    """A failover draft, the replicas that it may use, one after the other, and a clock."""

    def __init__(self, *guessers):
        self.now = 0.0
        self.remaining = None
        self.waiting = list(guessers)
        at_once = BreakerLimits(failures=1)
        self.excluded = []
        self.crowded = set()
        self.checked = []
        self.shared = Breakers(lambda: self.now, at_once)
        self.draft = FailoverDraft(
            choose=self.choose,
            own=Breakers(lambda: self.now, at_once),
            shared=self.shared,
            remaining=lambda: self.remaining,
            vocab_size=50,
            leave=self.leave,
        )
        self._caller = ByDeltas(self.draft)

    def leave(self, name, excluded):
        self.checked.append((name, set(excluded)))
        return name in self.crowded

    def choose(self, excluded):
        self.excluded.append(set(excluded))
        fitting = [at for at in self.waiting if at.name not in excluded]
        if not fitting:
            return None
        self.waiting.remove(fitting[0])
        return InUse(fitting[0].name, fitting[0], fitting[0].park)

    async def round(self, start, *tokens, plan=PLAN, session=SESSION):
        return await self._caller.propose(session, Delta(start, tokens), plan)


async def test_a_request_beyond_a_drafts_context_frees_it_and_sends_it_nothing_more():
    guesser = Guesser("a", Proposal(stopped_by="context"))
    world = World(guesser, Guesser("b"))
    for at in range(3):
        assert (await world.round(at, 1)).fallback == "context"
    assert guesser.is_released
    assert len(guesser.texts) == len(world.excluded) == 1


async def test_a_draft_that_keeps_failing_says_why_in_every_round_and_in_the_log_once(caplog):
    world = World(*(Guesser("a", errors.InternalError("bug 24")) for _ in range(9)))
    for at in range(9):
        assert (await world.round(at, 1)).fallback == "failed"
        world.now += 10.0
    assert world.waiting == []
    assert [at.getMessage() for at in caplog.records] == [
        "a request goes on without the draft a: bug 24"
    ]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (errors.Unavailable("gone"), "unavailable"),
        (errors.DeadlineExceeded("slow"), "timeout"),
        (errors.HandshakeError("another"), "mismatch"),
        (errors.ModelMismatch("another"), "mismatch"),
        (errors.CapacityError("full"), "full"),
        (errors.InvalidRequest("no"), "invalid"),
        (errors.SessionTaken("taken"), "session"),
        (errors.SessionOutOfSync("gap"), "session"),
        (errors.InternalError("bug"), "failed"),
        (ValueError("-inf + inf in fsum"), "failed"),
    ],
)
async def test_whatever_a_draft_raises_makes_a_plain_round_that_says_why(error, word):
    guesser = Guesser("a", error)
    world = World(guesser)
    assert await world.round(0, 1, 2, 3) == Proposal(fallback=word)
    assert guesser.is_released
    assert reason_of(error) == word


async def test_a_draft_that_comes_back_gets_everything_from_the_start():
    before, after = Guesser("a", Proposal(), errors.Unavailable("gone")), Guesser("a")
    world = World(before, after)
    await world.round(0, 1, 2, 3)
    assert (await world.round(3, 4)).fallback == "unavailable"
    assert (await world.round(4, 5)).fallback == "unavailable"  # it rests
    world.now += 0.5
    assert (await world.round(5, 6)).fallback is None
    assert after.texts == [[1, 2, 3, 4, 5, 6]]


async def test_a_request_leaves_a_crowded_draft_between_two_rounds_without_a_plain_one():
    first, second = Guesser("a"), Guesser("b")
    world = World(first, second)
    world.crowded = {"a"}
    for at in range(LEAVE_AFTER + 2):
        assert (await world.round(at, at)).fallback is None
    assert first.is_released
    assert (len(first.texts), world.draft.used) == (LEAVE_AFTER, "b")
    assert second.texts == [[*range(LEAVE_AFTER + 1)], [*range(LEAVE_AFTER + 2)]]
    assert world.excluded[-1] == {"a"}
    assert world.shared.resting() == frozenset()


async def test_a_request_that_finds_no_other_draft_than_the_crowded_one_takes_it_again():
    world = World(Guesser("a"), Guesser("a"))
    world.crowded = {"a"}
    rounds = [await world.round(at, at) for at in range(LEAVE_AFTER + 2)]
    reasons = [proposal.fallback for proposal in rounds]
    assert reasons == [None] * LEAVE_AFTER + ["no draft", None]
    assert rounds[LEAVE_AFTER] == Proposal(fallback="no draft")


@pytest.mark.parametrize(("length", "num_checks"), [(1, 3), (24 * 40, 3), (40 * 40, 1)])
async def test_the_longer_a_text_is_the_less_often_its_draft_may_be_left(length, num_checks):
    world = World(Guesser("a"))
    session = Session("s", num_prompt_tokens=length, max_tokens=100)
    await world.round(0, *[1] * length, session=session)
    for at in range(80):
        await world.round(length + at, 1, session=session)
    assert len(world.checked) == num_checks


async def test_under_roots_the_roots_alone_stand_in_for_a_lost_draft():
    session = Session("s", 3, 20, verification=Verification.TARGET_INIT, num_roots=2)
    plan = Plan(max_depth=3, max_nodes=6, shape=Shape.FORK, roots=(7, 9))
    world = World(Guesser("a", errors.Unavailable("gone"), Proposal(stopped_by="lag")))
    lost = await world.round(0, 1, 2, 3, plan=plan, session=session)
    assert lost == Proposal(TokenTree((7, 9), (-1, -1)), fallback="unavailable")
    behind = World(Guesser("a", Proposal(stopped_by="lag")))
    empty = await behind.round(0, 1, 2, 3, plan=plan, session=session)
    roots = TokenTree((7, 9), (-1, -1))
    assert empty == Proposal(roots, stopped_by="lag", fallback="no keys")
    assert behind.draft.used == "a"
    wrong = World(Guesser("a", Proposal(TokenTree((7, 8), (-1, -1)))))
    refused = await wrong.round(0, 1, 2, 3, plan=plan, session=session)
    assert refused == Proposal(roots, fallback="invalid")


async def test_a_cancelled_round_is_no_failure_of_the_draft():
    guesser = Guesser("a", asyncio.CancelledError())
    world = World(guesser)
    with pytest.raises(asyncio.CancelledError):
        await world.round(0, 1, 2, 3)
    assert world.shared.resting() == frozenset()
    await world.draft.release("s")
    assert guesser.is_released


@pytest.mark.parametrize("error", [errors.DeadlineExceeded("late"), errors.Unavailable("gone")])
@pytest.mark.parametrize("remaining", [None, 0.0, 0.1])
async def test_a_request_blames_its_draft_unless_its_own_time_is_up(error, remaining, caplog):
    guesser = Guesser("a", error)
    world = World(guesser)
    world.remaining = remaining
    assert (await world.round(0, 1, 2, 3)).fallback == reason_of(error)
    blames = remaining != 0.0
    assert world.shared.resting() == ({"a"} if blames else frozenset())
    assert guesser.is_released
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"a request goes on without the draft a: {error}"] * blames


async def test_a_draft_that_was_freed_meanwhile_blames_no_draft(caplog):
    class Leaving(Guesser):
        async def propose(self, sequence, plan):
            await world.draft.release("s")
            raise errors.Cancelled("it was ended")

    world = World(Leaving("a"))
    await world.round(0, 1, 2, 3)
    assert world.shared.resting() == frozenset()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("answers", "place"), [((), "a"), ((Proposal(), errors.Unavailable("gone")), None)]
)
async def test_parking_says_where_the_keys_are_if_anywhere_and_frees_the_seat(answers, place):
    guesser = Guesser("a", *answers)
    world = World(guesser)
    await world.round(0, 1, 2, 3)
    assert await world.draft.park(30.0) == place
    assert guesser.parked_for == 30.0
    assert guesser.is_released
    assert await world.draft.park(30.0) is None


async def test_a_late_proposal_is_neither_a_success_nor_a_failure_of_its_draft():
    guesser = Guesser("a", *(Proposal(fallback="late"),) * 3, errors.Unavailable("it is gone"))
    other = Guesser("b")
    world = World(guesser, other)
    for start in range(3):
        proposal = await world.round(start, start + 1)
        assert (proposal.fallback, len(proposal.tree)) == ("late", 0)
    assert (await world.round(3, 4)).fallback == "unavailable"
    assert (await world.round(4, 5)).fallback is None
    assert (world.draft.used, other.texts) == ("b", [[1, 2, 3, 4, 5]])


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(TokenTree.chain([50])),
        Proposal(TokenTree((1, 1), (-1, -1))),
        Proposal(TokenTree.chain([1, 2, 3, 4, 5])),
        Proposal(TokenTree(tuple(range(1, 8)), (-1,) * 7)),
        Proposal(TokenTree.chain([1]), stopped_by="whim 4711"),
        *(Proposal(TokenTree.chain([1]), (NodeStats(0.5, at, 1.0),)) for at in (inf, -inf, nan)),
    ],
)
async def test_a_proposal_that_was_not_asked_for_reaches_no_target_and_rests_no_draft(proposal):
    world = World(Guesser("a", proposal))
    assert await world.round(0, 1, 2, 3) == Proposal(fallback="invalid")
    assert world.shared.resting() == frozenset()
