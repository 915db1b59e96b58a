"""Laws of the draft's seat: a lost draft costs speculation, never tokens, and it is asked again."""

import asyncio
import math

import pytest
from google.protobuf.message import DecodeError

from slipstream.core import errors
from slipstream.core.options import SpeculationOptions
from slipstream.core.planner import Planner, resolve
from slipstream.core.profile import Profile
from slipstream.core.tree import TokenTree
from slipstream.core.types import (
    Delta,
    NodeStats,
    Plan,
    Proposal,
    SamplingParams,
    Session,
    Shape,
    SparseLaw,
    StopPolicy,
    Verdict,
    Verification,
)
from slipstream.router.breaker import BreakerLimits, Breakers
from slipstream.router.seat import DraftSeat, Failures, reason_of

INF, NAN = math.inf, math.nan
PLAN = Plan(max_depth=4, max_nodes=6)
SESSION = Session("s", num_prompt_tokens=3, max_tokens=20)


class Guesser:
    """A draft that answers what it was given, and remembers what it was told."""

    def __init__(self, name, *answers):
        self.name = name
        self.answers = list(answers)
        self.deltas = []
        self.is_dropped = False
        self.parked_for = None

    async def propose(self, session, delta, plan):
        self.deltas.append(delta)
        answer = self.answers.pop(0) if self.answers else Proposal(TokenTree.chain([1]))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def park(self, ttl_s):
        self.parked_for = ttl_s
        if self.answers:
            raise self.answers.pop(0)

    async def drop(self):
        self.is_dropped = True


class World:
    """A seat, the drafts that may sit on it, one after the other, and a clock."""

    def __init__(self, *guessers):
        self.now = 0.0
        self.remaining = None
        self.waiting = list(guessers)
        at_once = BreakerLimits(failures=1)
        self.excluded = []
        self.shared = Breakers(lambda: self.now, at_once)
        failures = Failures(Breakers(lambda: self.now, at_once), self.shared)
        self.seat = DraftSeat(
            self.choose, failures, vocab_size=50, remaining=lambda: self.remaining
        )

    def choose(self, excluded):
        self.excluded.append(set(excluded))
        fitting = [at for at in self.waiting if at.name not in excluded]
        if not fitting:
            return None
        self.waiting.remove(fitting[0])
        return fitting[0]

    async def round(self, start, *tokens, plan=PLAN, session=SESSION):
        return await self.seat.propose(session, Delta(start, tokens), plan)


async def test_a_draft_is_told_what_is_new_since_its_last_proposal():
    guesser = Guesser("a")
    world = World(guesser)
    await world.round(0, 1, 2, 3)
    await world.round(3, 4, 5)
    assert guesser.deltas == [Delta(0, (1, 2, 3)), Delta(3, (4, 5))]


async def test_without_a_draft_rounds_are_plain_and_say_so():
    proposal = await World().round(0, 1, 2, 3)
    assert proposal == Proposal(fallback="no draft")


async def test_a_draft_that_lacks_the_targets_keys_makes_a_plain_round_that_says_so():
    world = World(Guesser("a", Proposal(stopped_by="lag")))
    proposal = await world.round(0, 1, 2, 3)
    assert proposal.fallback == "no keys"
    assert world.seat.holder == "a"


async def test_a_request_beyond_a_drafts_context_frees_it_and_sends_it_nothing_more():
    guesser = Guesser("a", Proposal(stopped_by="context"))
    world = World(guesser, Guesser("b"))
    for at in range(3):
        assert (await world.round(at, 1)).fallback == "context"
    assert guesser.is_dropped
    assert len(guesser.deltas) == len(world.excluded) == 1


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
        (OverflowError("intermediate overflow in fsum"), "failed"),
        (DecodeError("no status"), "failed"),
    ],
)
async def test_whatever_a_draft_raises_makes_a_plain_round_that_says_why(error, word):
    guesser = Guesser("a", error)
    world = World(guesser)
    assert await world.round(0, 1, 2, 3) == Proposal(fallback=word)
    assert guesser.is_dropped
    assert reason_of(error) == word


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(TokenTree.chain([50])),
        Proposal(TokenTree((1, 1), (-1, -1))),
        Proposal(TokenTree.chain([1, 2, 3, 4, 5])),
        Proposal(TokenTree(tuple(range(1, 8)), (-1,) * 7)),
        Proposal(TokenTree.chain([1]), stopped_by="whim 4711"),
    ],
    ids=["id out of range", "equal siblings", "too deep", "too many nodes", "made-up reason"],
)
async def test_a_proposal_that_was_not_asked_for_never_reaches_the_target(proposal):
    world = World(Guesser("a", proposal))
    assert await world.round(0, 1, 2, 3) == Proposal(fallback="invalid")


async def test_a_law_that_is_none_never_reaches_the_target():
    session = Session("s", 3, 20, SamplingParams(temperature=1.0), Verification.MCSD)
    world = World(Guesser("a", Proposal(TokenTree.chain([1]))))
    assert (await world.round(0, 1, 2, 3, session=session)).fallback == "invalid"


@pytest.mark.parametrize(
    "probs",
    [(INF,), (INF, -INF), (-INF, 1.0), (1e308, 1e308), (NAN, 1.0), (2.0, -1.0), (0.9, 0.9), ()],
    ids=str,
)
async def test_a_law_of_numbers_that_are_no_probabilities_never_reaches_the_target(probs):
    session = Session("s", 3, 20, SamplingParams(temperature=1.0), Verification.MCSD)
    law = SparseLaw(tuple(range(1, 1 + len(probs))), probs)
    world = World(Guesser("a", Proposal(TokenTree.chain([1]), laws=(law, None))))
    assert (await world.round(0, 1, 2, 3, session=session)).fallback == "invalid"


@pytest.mark.parametrize("number", [INF, -INF, NAN])
async def test_statistics_that_are_no_numbers_never_reach_the_target(number):
    stats = (NodeStats(0.5, number, 1.0),)
    world = World(Guesser("a", Proposal(TokenTree.chain([1]), stats)))
    assert (await world.round(0, 1, 2, 3)).fallback == "invalid"


async def test_a_draft_that_comes_back_is_told_everything_from_the_start():
    before, after = Guesser("a", Proposal(), errors.Unavailable("gone")), Guesser("a")
    world = World(before, after)
    await world.round(0, 1, 2, 3)
    assert (await world.round(3, 4)).fallback == "unavailable"
    assert (await world.round(4, 5)).fallback == "unavailable"  # it rests
    world.now += 0.5
    assert (await world.round(5, 6)).fallback is None
    assert after.deltas == [Delta(0, (1, 2, 3, 4, 5, 6))]


async def test_another_draft_takes_over_in_the_next_round():
    first, second = Guesser("a", errors.Unavailable("gone")), Guesser("b")
    world = World(first, second)
    assert (await world.round(0, 1, 2, 3)).fallback == "unavailable"
    assert (await world.round(3, 4)).fallback is None
    assert world.excluded[-1] == {"a"}
    assert world.seat.holder == "b"
    assert second.deltas == [Delta(0, (1, 2, 3, 4))]


async def test_others_hear_of_a_draft_that_does_not_answer_not_of_a_bad_proposal():
    silent = World(Guesser("a", errors.DeadlineExceeded("slow")))
    await silent.round(0, 1, 2, 3)
    assert silent.shared.resting() == {"a"}
    rude = World(Guesser("a", Proposal(TokenTree.chain([50]))))
    await rude.round(0, 1, 2, 3)
    assert rude.shared.resting() == frozenset()


async def test_tokens_that_were_taken_back_are_told_anew():
    guesser = Guesser("a")
    world = World(guesser)
    await world.round(0, 1, 2, 3, 4, 5)
    await world.round(3, 9, 8)
    assert guesser.deltas[-1] == Delta(3, (9, 8))


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


async def test_roots_that_are_not_the_targets_are_refused():
    session = Session("s", 3, 20, verification=Verification.TARGET_INIT, num_roots=2)
    plan = Plan(max_depth=3, max_nodes=6, shape=Shape.FORK, roots=(7, 9))
    world = World(Guesser("a", Proposal(TokenTree((7, 8), (-1, -1)))))
    proposal = await world.round(0, 1, 2, 3, plan=plan, session=session)
    assert proposal == Proposal(TokenTree((7, 9), (-1, -1)), fallback="invalid")


async def test_a_cancelled_round_is_no_failure_of_the_draft():
    guesser = Guesser("a", asyncio.CancelledError())
    world = World(guesser)
    with pytest.raises(asyncio.CancelledError):
        await world.round(0, 1, 2, 3)
    assert world.shared.resting() == frozenset()
    await world.seat.release("s")
    assert guesser.is_dropped


@pytest.mark.parametrize("error", [errors.DeadlineExceeded("late"), errors.Unavailable("gone")])
async def test_a_request_whose_own_time_is_up_blames_no_draft(error, caplog):
    guesser = Guesser("a", error)
    world = World(guesser)
    world.remaining = 0.0
    assert (await world.round(0, 1, 2, 3)).fallback == reason_of(error)
    assert world.shared.resting() == frozenset()
    assert guesser.is_dropped
    assert caplog.records == []


async def test_a_request_with_time_left_does_blame_its_draft(caplog):
    world = World(Guesser("a", errors.DeadlineExceeded("late")))
    world.remaining = 0.1
    await world.round(0, 1, 2, 3)
    assert world.shared.resting() == {"a"}
    assert "a request goes on without the draft a: late" in caplog.text


async def test_a_seat_that_was_freed_meanwhile_blames_no_draft(caplog):
    class Leaving(Guesser):
        async def propose(self, session, delta, plan):
            await world.seat.release("s")
            raise errors.Cancelled("it was ended")

    world = World(Leaving("a"))
    await world.round(0, 1, 2, 3)
    assert world.shared.resting() == frozenset()
    assert caplog.records == []


async def test_parking_says_where_the_keys_are_and_frees_the_seat():
    guesser = Guesser("a")
    world = World(guesser)
    await world.round(0, 1, 2, 3)
    assert await world.seat.park(30.0) == "a"
    assert guesser.parked_for == 30.0
    assert guesser.is_dropped
    assert await world.seat.park(30.0) is None


async def test_a_draft_that_can_not_park_keeps_nothing():
    guesser = Guesser("a", Proposal(), errors.Unavailable("gone"))
    world = World(guesser)
    await world.round(0, 1, 2, 3)
    assert await world.seat.park(30.0) is None
    assert guesser.is_dropped


def test_a_round_without_a_draft_teaches_the_planner_nothing():
    options = SpeculationOptions(verification=Verification.TARGET_INIT, stop=StopPolicy.HEURISTIC)
    settings = resolve(options, Profile(), drafter="glide", has_decision_model=False)
    planner = Planner(settings)
    verdict = Verdict((7,), 1, roots=(3, 4))
    before = planner.plan(50, verdict)
    roots_alone = Proposal(TokenTree((7, 9), (-1, -1)), fallback="no draft")
    for _ in range(4):
        planner.record(roots_alone, verdict)
    assert planner.plan(50, verdict) == before
