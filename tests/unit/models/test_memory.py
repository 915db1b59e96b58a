"""Budgets of memory: sizes, shares and what does not fit, in one sentence each."""

import pytest

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.models import memory
from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.pool import KvLayout
from slipstream.models.memory import (
    budget_bytes,
    check_budget,
    free_bytes,
    num_pages,
)
from slipstream.verifying.build import TargetLimits, plan_memory
from support.models import tiny

LAYOUT = KvLayout(2, 2, 4, FLOAT32, CPU)


@pytest.mark.parametrize(
    ("budget", "size"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5KiB", 1536), ("4096", 4096), ("7B", 7)],
)
def test_a_size_is_what_it_says(budget, size):
    check_budget(budget)
    assert budget_bytes(budget, CPU) == size


FORMS, SHARES = r"must be auto, a share such as 0\.5 or a size", "must be between 0 and 1"
WRONG = dict.fromkeys(("", "much", "2GB", "-1GiB", "1e9", "50%"), FORMS)
WRONG |= dict.fromkeys(("0.0", "1.0", "1.5"), SHARES)


@pytest.mark.parametrize("budget", WRONG)
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(InvalidRequest, match=WRONG[budget]):
        check_budget(budget)


def test_a_share_leaves_room_for_the_workspace():
    free = free_bytes(CPU)
    half = budget_bytes("0.5", CPU, workspace_bytes=free // 2)
    assert 0.1 * free < half < 0.4 * free
    assert budget_bytes("0.5", CPU, workspace_bytes=2 * free) == 0


def test_there_are_as_many_pages_as_fit_and_no_more_than_can_be_used():
    page = LAYOUT.bytes_per_page
    assert num_pages(f"{5 * page + 1}", LAYOUT) == 5
    assert num_pages(f"{5 * page + 1}", LAYOUT, most=3) == 3
    with pytest.raises(CapacityError, match=r"a budget of 99 is 99 B .* a page takes 16.0 KiB"):
        num_pages("99", LAYOUT)


def test_an_engine_has_the_pages_of_its_budget():
    model = tiny.causal()
    page = model.layout.bytes_per_page
    memory, plan = plan_memory(model, TargetLimits(kv_memory=f"{3 * page}"))
    assert (memory.pool.num_pages, plan.kv_bytes) == (3, 3 * page)
    assert plan.weight_bytes == model.weight_bytes > 0
    most, _ = plan_memory(model, TargetLimits(max_sessions=2))
    assert most.pool.num_pages == 2 * model.context_length // 128


def test_nothing_is_kept_of_nobody_where_that_is_forbidden():
    model = tiny.causal()
    memory, _ = plan_memory(model, TargetLimits(max_cached_bytes=0))
    cache = memory.open([], 200)
    model.prefill(cache, tiny.tokens(150))
    memory.close(cache, tiny.tokens(150))
    assert (memory.num_cached_bytes, memory.pool.num_used_bytes) == (0, 0)


OLD = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
NEW = ("memory.max", "memory.current")
GROUPS = [(NEW, 5000, 2000, 3000), (NEW, 2000, 5000, 0), (OLD, 5000, 1000, 4000)]


@pytest.mark.parametrize(("names", "limit", "used", "left"), GROUPS)
def test_a_limit_of_the_control_group_bounds_memory(
    names, limit, used, left, tmp_path, monkeypatch
):
    """Both versions of control groups have such a limit."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert free_bytes(CPU) > 5000
    for name, number in zip(names, (limit, used), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{number}\n")
    assert free_bytes(CPU) == left


def test_a_group_without_a_limit_bounds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5000\n")
    assert free_bytes(CPU) > 5000
