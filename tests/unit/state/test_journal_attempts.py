"""Laws of several attempts at one request: the newest one writes, however late the others come."""

import pytest

from slipstream.core.errors import SessionTaken
from support.state.store_line import ENDING, Line, attempt, kept


@pytest.fixture
def line():
    return Line(lambda: 1000.0)


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
