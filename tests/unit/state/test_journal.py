"""Laws of a request's journal: kept before it is told, and kept later when the store was silent."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from slipstream.core.errors import SessionTaken, Unavailable
from slipstream.core.request.results import Ending
from slipstream.core.request.stats import MAX_PER_STEP, Outcomes
from slipstream.core.types import FinishReason
from slipstream.state.journal import StoreJournal
from support.models.rounds import outcome
from support.state.store_line import (
    CLAIM,
    ENDING,
    OPENING,
    PROMPT,
    STATS,
    Line,
    attempt,
    kept,
    opened,
)


@pytest.fixture
def line():
    return Line(lambda: 1000.0)


@pytest.fixture
async def journal(line):
    return await opened(line)


async def test_the_ending_of_a_request_of_very_many_rounds_is_kept_with_its_statistics(line):
    outcomes = Outcomes()
    for accepted in range(3 * MAX_PER_STEP):
        outcomes.record(outcome(1000, 1000, accepted % 1000))
    speculation = outcomes.summary(num_spec_tokens=1000, lossless=True)
    journal = await opened(line)
    await journal.keep([4], replace(ENDING, stats=replace(STATS, speculation=speculation)))
    found = Ending.from_json((await kept(line)).turn.ending)
    assert found.stats.speculation == speculation
    assert found.reason is FinishReason.STOP and found.stats.continuity.is_kept


async def test_a_request_goes_on_while_the_store_is_silent_and_says_so(line, journal):
    await journal.keep([4], None)
    line.is_up = False
    await journal.keep([5, 6], None)
    continuity = journal.continuity()
    assert (continuity.is_kept, continuity.num_unkept_tokens) == (False, 2)
    with pytest.raises(Unavailable):
        await journal.tend()


async def test_a_claim_that_is_lost_again_at_once_is_a_silence_of_the_store(line, journal):
    line.loses_leases = True
    await journal.keep([4], None)
    await journal.keep([5], None)
    assert not journal.continuity().is_kept
    line.loses_leases = False
    await journal.tend()
    await journal.keep([6], ENDING)
    assert journal.continuity().is_kept
    assert (await kept(line)).output == (4, 5, 6)


async def test_a_lease_that_is_renewed_while_it_is_acquired_anew_ends_nothing(line, journal):
    line.lose_everything()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(journal.tend())
        group.create_task(journal.keep([4], None))
        for _ in range(3):
            group.create_task(journal.tend())
    await journal.keep([5], ENDING)
    assert (await kept(line)).output == (4, 5)


async def test_a_session_that_another_key_began_in_an_empty_store_is_taken(line, journal):
    line.lose_everything()
    await line.acquire(replace(CLAIM, owner="another"))
    await journal.tend()
    with pytest.raises(SessionTaken, match="taken over by another request"):
        await journal.keep([4], None)


async def test_a_later_turn_that_names_no_model_is_kept_in_a_store_that_lost_everything(line):
    first = await opened(line)
    await first.keep([4], ENDING)
    await first.close(target=None, draft=None)
    turn = replace(CLAIM, request_id="r2", digest="2", model="", create=False)
    grant = await line.acquire(turn)
    journal = StoreJournal(line, turn, grant)
    line.lose_everything()
    journal.open((*grant.record.tokens, 5), replace(OPENING, num_prompt_tokens=5))
    await journal.keep([6], None)
    line.lose_everything()
    await journal.keep([7], ENDING)
    assert await journal.close(target=None, draft=None)
    record = (await line.store.acquire(turn)).record
    assert (record.tokens, record.output, record.model) == ((1, 2, 3, 4, 5, 6, 7), (6, 7), "model")


async def test_a_router_that_lost_the_session_during_an_outage_finds_out_and_writes_nothing(
    line, journal
):
    await journal.keep([4], None)
    line.is_up = False
    await journal.keep([5], None)
    await line.store.acquire(CLAIM)
    line.is_up = True
    await journal.tend()
    with pytest.raises(SessionTaken):
        await journal.keep([6], None)
    assert await journal.close(target=None, draft=None)
    assert (await kept(line)).output == (4,)


@pytest.mark.parametrize("is_up", [True, False])
async def test_a_session_is_given_back_once_its_last_words_are_kept(line, journal, is_up):
    line.is_up = is_up
    await journal.keep([4], ENDING)
    line.is_up = False
    assert not await journal.close(target="t", draft=None)
    line.is_up = True
    assert await journal.close(target="t", draft=None)
    record = await kept(line)
    assert (record.output, record.target) == ((4,), "t")
    assert record.turn.ending is not None
    grant = await line.acquire(replace(CLAIM, request_id="next", digest="next", create=False))
    assert grant.lease is not None


async def test_a_request_that_said_nothing_leaves_nothing(line, journal):
    assert await journal.close(target=None, draft=None)
    assert await line.count() == 0


async def begun_again_without_the_store(line, *output, says, ending=None):
    """A request that another router kept so much of, and that says this without the store."""
    before = await opened(line)
    await before.keep(output, ending)
    line.is_up = False
    journal = StoreJournal(line, CLAIM, None)
    journal.open(PROMPT, OPENING)
    await journal.keep(says, None)
    line.is_up = True
    await journal.tend()
    return journal


async def test_a_request_that_begins_anew_passes_what_was_kept_before(line):
    journal = await begun_again_without_the_store(line, 4, 5, 6, says=[4])
    await journal.keep([5, 6, 7], None)
    await journal.keep([8], ENDING)
    assert (await kept(line)).output == (4, 5, 6, 7, 8)


async def test_an_answer_that_was_kept_whole_is_not_written_again(line):
    journal = await begun_again_without_the_store(line, 4, 5, says=[4], ending=ENDING)
    await journal.keep([5], ENDING)
    assert await journal.close(target=None, draft=None)
    assert (await line.store.acquire(CLAIM)).lease is None


async def test_a_request_that_comes_out_otherwise_than_before_says_no_more(line):
    journal = await begun_again_without_the_store(line, 4, 5, 6, says=[4])
    with pytest.raises(SessionTaken):
        await journal.keep([9], None)


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_line_does_all_sent_tokens_are_kept_once_and_in_order(line, seed):
    rng = random.Random(seed)
    journal = await opened(line)
    told = []
    for token in range(10, 40):
        line.is_up, line.loses_answers = rng.random() < 0.6, rng.random() < 0.2
        told.append(token)
        await journal.keep([token], None)
        if rng.random() < 0.3:
            with suppress(Unavailable):
                await journal.tend()
    line.is_up, line.loses_answers = True, False
    assert await journal.close(target=None, draft=None)
    assert (await kept(line)).output == tuple(told)


@pytest.mark.parametrize("is_kept", [True, False], ids=["with the store", "without"])
@pytest.mark.parametrize("name", ["here-2", "there-1"], ids=["one router", "two routers"])
async def test_an_attempt_that_closes_late_leaves_the_request_to_one_that_runs(line, name, is_kept):
    line.is_up = False
    late = await attempt(line, "here-1", is_kept=False)
    await late.keep([4, 5], None)
    assert not await late.close(target=None, draft=None)
    line.is_up = is_kept
    runs = await attempt(line, name, is_kept=is_kept)
    await runs.keep([4], None)
    line.is_up = True
    await runs.tend()
    assert await late.close(target=None, draft=None)
    await runs.keep([5, 6], ENDING)
    assert runs.continuity().is_kept
    assert (await kept(line)).output == (4, 5, 6)


async def test_an_older_attempt_that_still_runs_leaves_the_request_to_the_newer_one(line):
    line.is_up = False
    older, newer = [await attempt(line, f"here-{at}", is_kept=False) for at in (1, 2)]
    for journal in (older, newer):
        await journal.keep([4], None)
    line.is_up = True
    for journal in (newer, older):
        await journal.tend()
    with pytest.raises(SessionTaken):
        await older.keep([5], None)
    await newer.keep([5], ENDING)
    assert (await kept(line)).output == (4, 5)
