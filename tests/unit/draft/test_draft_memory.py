"""A draft's memory is bounded, goes back when its users go, and is never a reason to fail. A mirror
of the target's keys holds what it was sent, and what a reader was shown stays as it was."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import InvalidRequest, NoRoom
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session
from slipstream.drafting.engine import NO_ROOM
from slipstream.drafting.kv_mirror import ByteBudget, KvMirror
from slipstream.models.dtypes import BFLOAT16, CPU, FLOAT32
from slipstream.models.kv.pool import KvLayout
from slipstream.models.memory import DraftMemory
from support.models import tiny
from support.services.draft_crowd import alone, asked, both_scorers, engine, same

LAYOUT = KvLayout(1, 3, 64, BFLOAT16, CPU)
NEEDS = {"weight_bytes": 1 << 20, "workspace_bytes": 1 << 20, "max_tokens": 1000}
KINDS = pytest.mark.parametrize("kind", ["glide", "vanilla"])


@pytest.fixture(scope="module")
def scorers():
    return both_scorers()


@KINDS
async def test_what_is_parked_gives_way_and_comes_back_the_same(scorers, kind):
    local = engine(scorers, kind, num_pages=4)
    calls = [asked(number) for number in range(3)]
    for call in calls[:2]:
        finished(local.propose(*call))
    local.park("s1")
    local.park("s0")
    same(finished(local.propose(*calls[2])), alone(scorers, kind, *calls[2]))
    held = (local.pool.num_pages - local.pool.num_free) * local.pool.layout.bytes_per_page
    assert (local.kv_bytes("s1"), local.num_kv_bytes) == (0, held)
    assert local.kv_bytes("s0") > 0, "the longest parked goes first"
    sequence, plan = calls[1]
    again = TokenSequence(sequence.session, sequence.tokens)
    assert local.num_same(again) == len(again), "its tokens stay"
    same(finished(local.propose(again, plan)), alone(scorers, kind, *calls[1]))


def test_a_session_longer_than_all_memory_evicts_no_other(scorers):
    local = engine(scorers, num_pages=3)
    finished(local.propose(*asked(0)))
    local.park("s0")
    held = local.num_kv_bytes
    huge = Session("s9", 9, 1000)
    tokens = tuple(tiny.tokens(13, seed=9))
    proposal = finished(local.propose(TokenSequence(huge, tokens), Plan(3, 3)))
    assert proposal.stopped_by == NO_ROOM and local.num_kv_bytes == held > 0


def test_nothing_is_held_where_nothing_is_drafted(scorers):
    local = engine(scorers)
    finished(local.propose(asked(0)[0], Plan(0, 0)))
    assert (local.num_kv_bytes, local.pool.num_free) == (0, local.pool.num_pages)


def test_a_budget_covers_own_and_mirrored_pages_and_no_more_than_sessions_can_use():
    three = {**NEEDS, "mirrored": replace(LAYOUT, num_layers=3)}
    plan = DraftMemory("1MiB", 64, is_mirroring=True).plan(LAYOUT, **three)
    assert plan.page_bytes == 4 * LAYOUT.bytes_per_page
    assert plan.kv_bytes <= 1 << 20 < plan.kv_bytes + plan.page_bytes
    assert DraftMemory("1MiB", 64).plan(LAYOUT, **three).num_pages == 10
    longest = 9  # pages of 1000 tokens and a tree
    assert DraftMemory("2GiB", 5).plan(LAYOUT, **NEEDS).num_pages == 5 * longest


def filled(count, value):
    return np.full((1, 2, count, 4), value, np.float32)


def test_mirrors_share_a_budget_and_keep_what_they_have():
    layout = KvLayout(1, 1, 4, FLOAT32, CPU)
    budget = ByteBudget(3 * layout.bytes_per_page)
    one, other = (KvMirror((0,), layout, limit=1000, budget=budget) for _ in range(2))
    one.write(0, filled(200, 1))
    other.write(0, filled(100, 2))
    assert budget.num_bytes == one.num_bytes + other.num_bytes == budget.limit
    with pytest.raises(NoRoom, match="more for the target's keys"):
        other.write(100, filled(100, 3))
    assert other.count == 100 and bool((other.view().layers[0][:, :100] == 2).all())
    one.free()
    assert (one.count, one.num_bytes) == (0, 0)
    other.write(100, filled(100, 3))
    assert other.count == 200 and budget.num_bytes == other.num_bytes


LAYERS = (5, 2)
MIRRORED = KvLayout(2, 3, 4, FLOAT32, CPU)


def truth(count, seed=0):
    """Two layers [2, 2 * heads, count, head_dim]."""
    return np.random.default_rng(seed).normal(size=(2, 6, count, 4)).astype(np.float32)


def send(mirror, whole, start, end):
    mirror.write(start, whole[:, :, start:end])


def assert_shows(view, whole, count):
    assert view.count == count
    for layer, values in zip(LAYERS, whole, strict=True):
        assert np.array_equal(view.layers[layer][:, :count], values[:, :count])


@pytest.fixture
def mirror():
    return KvMirror(LAYERS, MIRRORED, limit=1000)


@pytest.mark.parametrize("forget_first", [False, True])
def test_what_a_reader_was_shown_stays_as_it_was(mirror, forget_first):
    first, second = truth(500), truth(500, seed=1)
    send(mirror, first, 0, 20)
    shown = mirror.view()
    if forget_first:
        mirror.truncate(8)
    send(mirror, second, 8, 300)
    send(mirror, second, 300, 500)
    assert_shows(shown, first, 20)


def test_room_is_never_made_past_the_limit():
    mirror = KvMirror(LAYERS, MIRRORED, limit=100)
    mirror.reserve(10**9)
    assert mirror.num_bytes == 128 * MIRRORED.bytes_per_token


def test_a_mirror_may_leave_out_positions_behind_the_first_ones(mirror):
    whole = truth(900)
    mirror.free(skipped=512)
    mirror.reserve(900)
    assert mirror.num_bytes == 512 * MIRRORED.bytes_per_token, "no room for what is left out"
    for start, end in ((0, 100), (100, 128), (640, 700), (700, 900)):
        send(mirror, whole, start, end)
    view = mirror.view()
    assert (view.count, view.num_held, view.skipped) == (900, 388, 512)
    expected = np.concatenate((whole[:, :, :128], whole[:, :, 640:]), 2)
    for layer, values in zip(LAYERS, expected, strict=True):
        assert np.array_equal(view.layers[layer][:, :388], values)


def test_positions_that_are_left_out_count_as_if_they_were_there(mirror):
    whole = truth(900)
    mirror.free(skipped=512)
    send(mirror, whole, 0, 128)
    assert mirror.count == 640
    send(mirror, whole, 640, 900)
    mirror.truncate(300)
    assert (mirror.count, mirror.view().num_held) == (640, 128)
    mirror.truncate(50)
    assert mirror.count == mirror.view().num_held == 50


@pytest.mark.parametrize(("start", "end"), [(100, 200), (300, 310), (639, 641)])
def test_positions_that_are_left_out_are_refused(mirror, start, end):
    mirror.free(skipped=512)
    send(mirror, truth(900), 0, 128)
    with pytest.raises(InvalidRequest, match="512 from 128 on are left out"):
        send(mirror, truth(900), start, end)
    assert mirror.count == 640
