"""Pages of keys and values, shared and copied before a write; budgets of the memory for them."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import CapacityError, InvalidRequest, ModelError, NoRoom
from slipstream.core.tree import TokenTree
from slipstream.models import memory
from slipstream.models.dtypes import BFLOAT16, CPU, FLOAT32
from slipstream.models.kv.batch import Part
from slipstream.models.kv.pool import BLOCK_SIZE, HOST, KvLayout, KvPool, PageList
from slipstream.models.memory import budget_bytes, check_budget, free_bytes, num_pages
from slipstream.models.torch.arrays import TorchBuffers, as_array
from slipstream.options import build
from slipstream.verifying.build import TargetLimits, plan_memory
from slipstream_target.config import TargetConfig
from support.models import tiny

LAYOUT = KvLayout(2, 2, 4, FLOAT32, CPU).keeping((0, 2), 6)
KINDS = (HOST, TorchBuffers(CPU))
NAMED = {"none": (), "auto": (2, 15, 27), "0,30": (0, 30), "7": (7,)}
NOT_KEPT = [((31,), "hidden_layers is 31, but must be layers from 0 to 30"), ((1, 1), "each once")]


def test_layers_whose_states_are_kept_are_those_of_the_model_each_once(tmp_path):
    layout = replace(LAYOUT, num_layers=30)
    (tmp_path / "config.json").write_text('{"eagle_aux_hidden_state_layer_ids": [1, 4, 30]}')
    for text, layers in {**NAMED, f"eagle3:{tmp_path}": (1, 4, 30)}.items():
        limits = build(TargetConfig, hidden_layers=text).target_limits(30)
        assert layout.keeping(limits.hidden_layers, 8).hidden_layers == layers
    for text in ("", "some", "1,,2", "-1", "1, 2", "99999999"):
        with pytest.raises(InvalidRequest, match=r"hidden_layers is .* none, auto, eagle3:HEAD or"):
            build(TargetConfig, hidden_layers=text)
    for layers, sentence in NOT_KEPT:
        with pytest.raises(InvalidRequest, match=sentence):
            layout.keeping(layers, 8)
    with pytest.raises(ModelError, match="of 7 elements can't be kept in halves"):
        layout.keeping((1,), 7)


@given(st.lists(st.integers(min_value=1, max_value=6), max_size=60), st.randoms())
def test_every_page_is_free_or_taken_once(sizes, rng):
    free, taken = PageList(16), []
    for size in sizes:
        if size <= len(free):
            taken.append(free.take(size, after=rng.choice([None, rng.randrange(16)])))
        elif taken:
            for page in taken.pop(rng.randrange(len(taken))):
                free.give(page)
        held = [page for pages in taken for page in pages]
        assert len(set(held)) == len(held) == 16 - len(free)


def test_more_pages_than_there_are_is_not_a_matter_of_waiting():
    pool = KvPool(LAYOUT, 4)
    pool.take(3)
    with pytest.raises(NoRoom, match="256 slots of keys and values are needed, but 128 are free"):
        pool.take(2)
    with pytest.raises(CapacityError, match="there are 512 in all") as refused:
        pool.take(5)
    assert not isinstance(refused.value, NoRoom)
    assert pool.num_free == 1


@pytest.mark.parametrize("buffers", KINDS)
def test_a_page_is_clear_when_it_is_handed_out_first(buffers):
    pool = KvPool(LAYOUT, 3, buffers=buffers)
    for at in LAYOUT.shapes():
        pool.layer(at)[:] = 7  # as memory that was somebody's before
    for page in pool.take(3):
        slots = slice(page * BLOCK_SIZE, (page + 1) * BLOCK_SIZE)
        assert all((pool.layer(at)[:, slots] == 0).all() for at in LAYOUT.shapes())


@pytest.mark.parametrize("buffers", KINDS)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_slots_are_copied_as_they_were_before_any_was_written(buffers, dtype):
    pool = KvPool(replace(LAYOUT, dtype=dtype), 2, buffers=buffers)
    for at, (rows, width) in LAYOUT.shapes().items():
        values = np.arange(rows * pool.scratch.stop * width).reshape(rows, -1, width)
        buffers.write(pool.layer(at), slice(None), values.astype(dtype))
    before = {at: np.array(buffers.on_host(pool.layer(at))) for at in LAYOUT.shapes()}
    source, into = [3, 4, 5, 200], [4, 5, 3, 0]
    pool.copy(source, into)
    for at, values in before.items():
        expected = values.copy()
        expected[:, into] = values[:, source]
        assert np.array_equal(buffers.on_host(pool.layer(at)), expected)


def scattered(model, capacity, *, seed=0):
    """A cache whose pages are no neighbours."""
    pool = model.pool(4 * (capacity // BLOCK_SIZE + 1))
    pages = pool.take(pool.num_pages)
    random.Random(seed).shuffle(pages)
    for page in pages[::2]:
        pool.drop(page)
    cache = model.open_in(pool)
    cache.reserve(capacity)
    assert cache.base(cache.num_slots) is None
    return cache


@pytest.mark.parametrize("engine", [None, "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_pages_lie_makes_no_difference_to_a_bit(dtype, engine):
    model = tiny.causal(dtype=dtype, engine=engine, hidden_layers=(0, 3))
    tokens = tiny.tokens(300)
    tree = TokenTree((5, 6, 7, 8, 9), (-1, -1, 0, 1, 2))
    states = []
    for cache in (model.open(400), scattered(model, 400)):
        model.prefill(cache, tokens[:290])
        hidden, (slots,) = model.forward([Part(cache, tokens[290:], tree)])
        cache.keep([*slots[:10], slots[11], slots[13]])
        after, _ = model.forward([Part(cache, [9])])
        states.append((hidden, after, *(cache.gather(at, 0, 302) for at in (1, 3, 6))))
    for ours, theirs in zip(*states, strict=True):
        assert np.array_equal(as_array(ours), as_array(theirs))


def test_who_writes_to_a_shared_page_gets_a_copy():
    model = tiny.causal(hidden_layers=(3,))
    pool = model.pool(6)
    one = model.open_in(pool)
    model.prefill(one, tiny.tokens(200))
    before = {at: one.gather(at, 0, 200).copy() for at in (0, 6)}
    two = type(one)(pool, limit=512, pages=one.pages, count=150)
    model.prefill(two, tiny.tokens(30, seed=5))
    assert two.pages[0] == one.pages[0]
    assert two.pages[1] != one.pages[1]
    for at, values in before.items():
        assert np.array_equal(one.gather(at, 0, 200), values)
        assert np.array_equal(two.gather(at, 0, 150), values[:, :150])
    one.close()
    two.close()
    assert pool.num_free == 6


def test_a_tree_needs_no_pages_of_its_session_but_scratch_room():
    model = tiny.causal()
    full = model.open(BLOCK_SIZE)
    roomy = model.open(3 * BLOCK_SIZE)
    tokens, tree = tiny.tokens(BLOCK_SIZE), TokenTree.chain(tiny.tokens(6, seed=1))
    states = []
    for cache in (full, roomy):
        model.prefill(cache, tokens[:-1])
        states.append(model.forward([Part(cache, tokens[-1:], tree)])[0])
    assert full.num_slots == BLOCK_SIZE
    assert np.array_equal(*states)
    cache = model.open_in(model.pool(1, scratch_rows=1))
    wide = TokenTree((1,) * 140, (-1,) * 140)
    with pytest.raises(CapacityError, match="more nodes than there is scratch room for"):
        model.forward([Part(cache, [1], wide)])


SIZES = {"2GiB": 2 << 30, "512 MiB": 512 << 20, "1.5KiB": 1536, "4096": 4096, "7B": 7}
FORMS, SHARES = r"must be auto, a share such as 0\.5 or a size", "must be between 0 and 1"
WRONG = dict.fromkeys(("", "much", "2GB", "-1GiB", "1e9", "50%"), FORMS)
WRONG |= dict.fromkeys(("0.0", "1.0", "1.5"), SHARES)


@pytest.mark.parametrize("budget", [*SIZES, *WRONG])
def test_a_size_is_what_it_says_and_what_is_no_budget_is_refused(budget):
    if budget in SIZES:
        check_budget(budget)
        assert budget_bytes(budget, CPU) == SIZES[budget]
        return
    with pytest.raises(InvalidRequest, match=WRONG[budget]):
        check_budget(budget)


def test_a_share_leaves_room_for_the_workspace():
    free = free_bytes(CPU)
    assert 0.1 * free < budget_bytes("0.5", CPU, workspace_bytes=free // 2) < 0.4 * free
    assert budget_bytes("0.5", CPU, workspace_bytes=2 * free) == 0


def test_there_are_as_many_pages_as_fit_and_no_more_than_can_be_used():
    page = LAYOUT.bytes_per_page
    assert num_pages(f"{5 * page + 1}", CPU, page) == 5
    assert num_pages(f"{5 * page + 1}", CPU, page, most=3) == 3
    assert page == 128 * 4 * (2 * 2 * 2 * 4 + 2 * 6), "keys and values, and two hidden states"
    with pytest.raises(CapacityError, match=r"a budget of 99 is 99 B .* a page takes 22.0 KiB"):
        num_pages("99", CPU, page)
    model = tiny.causal()
    page = model.layout.bytes_per_page
    memory, plan = plan_memory(model, TargetLimits(kv_memory=f"{3 * page}"))
    assert (memory.pool.num_pages, plan.kv_bytes) == (3, 3 * page)
    assert plan.weight_bytes == model.weight_bytes > 0
    most, _ = plan_memory(model, TargetLimits(max_sessions=2))
    assert most.pool.num_pages == 2 * model.context_length // 128


def test_nothing_is_kept_without_a_name_where_that_is_forbidden():
    model = tiny.causal()
    memory, _ = plan_memory(model, TargetLimits(max_cached_bytes=0))
    cache = memory.open([], 200)
    model.prefill(cache, tiny.tokens(150))
    memory.close(cache, tiny.tokens(150))
    assert (memory.num_cached_bytes, memory.pool.num_free) == (0, memory.pool.num_pages)


OLD = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
NEW = ("memory.max", "memory.current")
GROUPS = [(NEW, 5000, 2000, 3000), (NEW, 2000, 5000, 0), (OLD, 5000, 1000, 4000)]


@pytest.mark.parametrize(("names", "limit", "used", "left"), [*GROUPS, (NEW, "max", 5000, None)])
def test_a_limit_of_a_control_group_bounds_memory(names, limit, used, left, tmp_path, monkeypatch):
    """Both versions of control groups have such a limit."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert free_bytes(CPU) > 5000
    for name, number in zip(names, (limit, used), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{number}\n")
    assert free_bytes(CPU) == left if left is not None else free_bytes(CPU) > 5000
