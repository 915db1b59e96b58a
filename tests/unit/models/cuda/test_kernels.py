"""Kernels of a GPU: exact, and the same for a token in any company.

Where there is no GPU, Triton interprets the kernels.
"""

import math
import random
from itertools import chain

import numpy as np
import pytest
import torch

from slipstream.core.tree import TokenTree
from slipstream.models.cuda.layers import add_norm, attend_others, finish, place, read_states
from slipstream.models.dtypes import BFLOAT16
from slipstream.models.format.safetensors_file import FP8
from slipstream.models.glide.glide_chain import ChainNumber, StateNumber, StepNumber
from slipstream.models.kv.batch import Batch, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.torch.arrays import TorchBuffers, numpy_dtype
from slipstream.models.torch.packing import pack, tiles_of
from slipstream.models.torch.paged import attend, num_places, on_pages, unpack
from support.cuda.operators import draw, edit, multiply, read_chain, truncate
from support.models import tiny

kernels = pytest.importorskip("slipstream.models.cuda.kernels")
from slipstream.models.cuda import attention_kernels, chain_kernels, draw_kernels  # noqa: E402

attend_spans = attention_kernels.attend_spans
FLOATS = {"bf16": BFLOAT16, "fp8e4nv": FP8, "fp16": np.dtype("f2"), "fp32": np.dtype("f4")}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def convert(numbers, source, into, _):
    """Round to the nearest, as a GPU does; Triton's interpreter cuts off, and loses carries."""
    with np.errstate(all="ignore"):
        found = numbers.view(FLOATS[source.name]).astype(FLOATS[into.name])
    return found.view(f"u{found.itemsize}")


@pytest.fixture(autouse=True)
def conversions(monkeypatch):
    monkeypatch.setattr("triton.runtime.interpreter._convert_float", convert)


class Sessions:
    """Sessions of some lengths on scattered pages of random keys, and random queries."""

    def __init__(self, lengths, *, group=4, heads=2, size=16, dtype=torch.float32):
        self._rng, self._noise = random.Random(0), torch.Generator().manual_seed(0)
        self.group, self.size = group, size
        layout = KvLayout(1, heads, size, numpy_dtype(dtype), DEVICE)
        count = sum(length // 128 + 3 for length in lengths)
        self.pool = KvPool(layout, count, buffers=TorchBuffers(DEVICE))
        pages, layer = self.pool.take(count), self.pool.layer(0)
        layer.copy_(torch.randn(layer.shape, generator=self._noise))
        self.fresh = torch.randn(len(layer), 66, size, generator=self._noise).to(layer)
        self._rng.shuffle(pages)
        self.caches = []
        for length in lengths:
            own = [pages.pop() for _ in range(length // 128 + 2)]
            self.caches.append(KvCache(self.pool, limit=1 << 16, pages=own, count=length))

    def query(self, num):
        heads = self.pool.layout.num_kv_heads * self.group
        made = torch.randn(num, heads, self.size, generator=self._noise)
        return made.to(self.pool.layer(0))

    def attend(self, parts, query, by=attend_spans, dtype=None, rounds=False):
        batch = Batch.of(parts)
        self.pool.layer(0)[:, batch.slots] = self.fresh[:, batch.tokens]
        packed = pack(batch, num_places(self.group) // self.group)
        _, meta = unpack(torch.from_numpy(packed.values).to(DEVICE), packed.shape)
        table = meta.attended
        given = (query.to(dtype or query.dtype), self.pool.layer(0).to(dtype or query.dtype))
        if by is attend:
            given, table = [own.cpu() for own in given], [own.cpu() for own in table]
        found = by(*given, table, self.size**-0.5, rounds)
        return torch.cat([own.cpu().float() for own in found], 1) if rounds else found[0].cpu()


def assert_close(found, expected, dtype):
    """Compare rows of a dtype; 8-bit ones may be one step beside each other, but few are."""
    close = {"rtol": 2 * TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype]}
    if found.dtype == torch.float8_e4m3fn:
        found, expected = found.float(), expected.float()
        assert (found != expected).sum() <= 0.04 * found.numel()
        close = {"rtol": 0.126, "atol": 448 * TOLERANCE[dtype]}
    torch.testing.assert_close(found, expected, **close)


CASES = [
    ((1,), 0, 1, 1, 64, torch.float32),
    ((3, 127, 128), 4, 4, 2, 16, torch.float32),
    ((250,), 12, 8, 1, 80, torch.float16),
    ((63, 64), 6, 3, 2, 64, torch.bfloat16),
    ((5000,), 2, 4, 1, 32, torch.bfloat16),
]


@pytest.mark.parametrize(("lengths", "nodes", "group", "heads", "size", "dtype"), CASES)
def test_attention_is_what_float64_computes(lengths, nodes, group, heads, size, dtype):
    sessions = Sessions(lengths, group=group, heads=heads, size=size, dtype=dtype)
    parts = [
        Part(cache, [1] * (1 + seed % 2), tiny.tree(random.Random(seed), nodes, 66))
        for seed, cache in enumerate(sessions.caches)
    ]
    query = sessions.query(sum(len(part.pending) + len(part.tree) for part in parts))
    found = sessions.attend(parts, query)
    expected = sessions.attend(parts, query, attend, torch.float64)
    assert (found.double() - expected).abs().max() < TOLERANCE[dtype]


def test_attention_in_8_bits_is_what_float64_computes_and_the_same_in_any_batch():
    sessions = Sessions((63, 64), group=3, size=80, dtype=torch.bfloat16)
    parts = [Part(cache, [1], tiny.tree(random.Random(3), 3, 66)) for cache in sessions.caches]
    query = sessions.query(8)
    found = sessions.attend(parts, query, rounds=True)
    assert torch.equal(sessions.attend(parts[:1], query[:4], rounds=True), found[:4])
    expected = sessions.attend(parts, query, attend, torch.float64)
    largest = expected.abs().amax(1, keepdim=True)
    torch.testing.assert_close(found[:, -1:].double(), largest / 448, rtol=0.01, atol=0)
    errors = (found[:, :-1] * found[:, -1:] - expected).abs()
    assert (errors < expected.abs() / 16 + largest / 256).all()


def test_a_token_has_the_same_bits_in_any_batch_tree_and_place(monkeypatch):
    monkeypatch.setattr("triton.runtime.interpreter.InterpreterBuilder.create_dot", multiply)
    sessions = Sessions([60, 150, 260], group=3)
    first, other, third = sessions.caches
    tree = TokenTree((5, 6, 7, 8), (-1, -1, 1, 2))  # the second path is in scratch slots
    query = sessions.query(5)
    branch = sessions.attend([Part(first, [1], tree)], query)
    parts = [Part(other, [1, 2], tree), Part(first, [1], tree), Part(third, [1])]
    more = torch.cat([sessions.query(6), query, sessions.query(1)])
    assert torch.equal(sessions.attend(parts, more)[6:11], branch)
    # The path's keys come to their positions, and its last token is computed alone.
    slots = Batch.of([Part(first, [1], tree)]).slots
    first.keep([slots[0], *slots[2:4]])
    assert torch.equal(sessions.attend([Part(first, [8])], query[4:]), branch[4:])


def noise(*size, seed=0, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize(("dtype", "size"), [*zip(TOLERANCE, (48, 64, 48), strict=True)])
def test_operators_between_products_are_those_of_a_cpu(dtype, size):
    x, more = (noise(3, 2 * size, seed=seed, dtype=dtype) for seed in (1, 2))
    weight = noise(2 * size, seed=3, dtype=dtype)
    cos, sin, *norms = (noise(3, size, seed=seed, dtype=dtype) for seed in range(4, 8))
    qkv, slots = noise(3, 7 * size, seed=8, dtype=dtype), torch.tensor([4, 0, 2], device=DEVICE)
    layers = [noise(4, 5, size, seed=9, dtype=dtype) for _ in range(2)]
    pairs = [*zip(kernels.finish_rows(x, False, True), finish(x, False, True), strict=True)]
    for rounds in (False, True):
        pairs += zip(*(f(x, True, rounds) for f in (kernels.finish_rows, finish)), strict=True)
        for adds in (more, more[:0], torch.cat([more, x.flip(0), more.flip(0)])):  # of three ranks
            norms_of = (kernels.add_norm_rows, add_norm)
            found, expected = (norm(x, adds, weight, 1e-5, rounds) for norm in norms_of)
            pairs += zip(found, expected, strict=True)
    for own in ([], [norm[0] for norm in norms]):
        by = (kernels.place_heads, place)
        given = ([cos, sin, slots], own, 1e-5)
        pairs.append(tuple(f(qkv, layer, *given) for f, layer in zip(by, layers, strict=True)))
        pairs.append(tuple(layer.clone() for layer in layers))
    given = ([cos[:, :16], sin[:, :16], slots], [norms[0][0]], 1e-5)  # a part is turned, no keys
    pairs.append(tuple(f(qkv, layer[:0], *given) for f, layer in zip(by, layers, strict=True)))
    for found, expected in pairs:
        assert_close(found, expected, dtype)


def test_rows_in_8_bits_have_the_same_bits_in_any_batch():
    x, more, weight = noise(5, 1200), noise(5, 1200, seed=1), noise(1200, seed=2)
    whole = [kernels.add_norm_rows(x, more, weight, 1e-5, True), kernels.finish_rows(x, True, True)]
    for row in range(5):
        own, other = x[row : row + 1], more[row : row + 1]
        alone = [
            kernels.add_norm_rows(own, other, weight, 1e-5, True),
            kernels.finish_rows(own, True, True),
        ]
        for found, expected in zip(chain(*whole), chain(*alone), strict=True):
            assert torch.equal(found[row : row + 1], expected)
    zeros = kernels.finish_rows(0 * x, False, True)
    assert not zeros[0].float().any()
    assert zeros[1].isfinite().all()


def test_draws_are_those_of_a_cpu():
    for num, size in ((4, 100), (2, 40_000)):
        logits = noise(num, size).round(decimals=1)  # with ties
        logits[1, 3] = math.nan
        heats = torch.tensor([0, 0.7, 1, 1.9][:num], device=DEVICE)
        keys = torch.arange(2 * num, dtype=torch.int32, device=DEVICE).view(num, 2) * 77_777_777
        assert torch.equal(draw_kernels.draw_tokens(logits, heats, keys), draw(logits, heats, keys))


@pytest.mark.parametrize(
    ("dtype", "has_norm", "rounds"),
    [*zip(TOLERANCE, (True, False, True), (False, False, True), strict=True)],
)
def test_keys_and_states_of_another_model_are_read_where_they_are(dtype, has_norm, rounds):
    buffers = [noise(4, num, 48, seed=num, dtype=dtype) for num in (384, 256)]
    others = torch.tensor([(own.data_ptr(), own.shape[1]) for own in buffers] + [(0, 0)])
    tables = torch.tensor([[2, 0, 1], [1, 0, 0], [0, 0, 0]])
    counts = torch.tensor([300, 7, 0, 130, 200, 129, 0, 0, 0])
    query, turns = noise(9, 6, 48, seed=1, dtype=dtype), noise(2, 9, 32, seed=2, dtype=dtype)
    norms = [noise(48, seed=3, dtype=dtype)] if has_norm else []
    given = [own.to(DEVICE) for own in (others, tables, torch.tensor(tiles_of([3] * 3, 2)), counts)]
    asked = (query, [*turns, *norms], 1e-5, [given[0], *on_pages(*given[1:])], 2)
    with np.errstate(all="ignore"):
        found = attention_kernels.attend_other_spans(*asked, rounds)
    for own, expected in zip(found, attend_others(*asked, rounds), strict=True):
        assert_close(own, expected, dtype)
    assert not found[0][6:].float().any()  # a session without keys
    slots = torch.tensor([7, -1, 290, 127, 5, 0, 3, -1, 0], device=DEVICE)
    asked = (query, given[0].expand(2, 3, 2), slots, 96)  # two layers of hidden states
    found = kernels.read_halves(*asked)
    assert torch.equal(found, read_states(*asked))
    expected = torch.stack([buffers[0][:2, 290], buffers[1][:2, 127]]).flatten(1)
    assert torch.equal(found[2:4], expected.repeat(1, 2))
    assert not found[[1, 6, 7, 8]].any()


@pytest.mark.parametrize("width", [0, 6])
@pytest.mark.parametrize(("size", "num"), [(40, 1), (700, 5)])
def test_slots_of_chains_are_read_as_a_cpu_reads_them(width, size, num):
    logits, state = 3 * noise(6, size, seed=size), torch.rand(len(StateNumber), 6).double()
    logits[2, 3], logits[4, 5] = math.nan, math.inf
    steps = torch.arange(len(StepNumber) * 6).view(len(StepNumber), 6) * 7_777_777 % 1000
    rules = torch.rand(6, ChainNumber.POINTS + 4, dtype=torch.float64)
    rules[:, ChainNumber.HEAT] = torch.tensor([0, 0.7, 1, 1.9, 1, 0])
    rules[:, ChainNumber.POLICY], rules[:, ChainNumber.NUM_POINTS] = torch.arange(6) % 4, 4
    rules[:, ChainNumber.MAX_DEPTH] = 3
    rules[:, ChainNumber.LIMIT] = torch.tensor([2, 9, 9, 9, 9, 1])
    state[StateNumber.LENGTH], state[StateNumber.REASON] = torch.tensor([0, 1, 2, 0, 1, 1]), 0
    vocab = torch.arange(size) * 2 + 5
    head = [vocab, noise(width + 2, 4, seed=3), noise(2, width, seed=4)] if width else [vocab]
    first = noise(6, width + 2, seed=5) if width else noise(6, 0)
    given = [own.to(DEVICE) for own in (steps, rules, state)]
    asked = (logits, first, [own.to(DEVICE) for own in head], given, num)
    with np.errstate(all="ignore"):
        read = chain_kernels.read_chains(*asked)
    good, close = [0, 1, 3, 5], {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
    (found, numbers), (state, expected) = read, read_chain(*asked)
    torch.testing.assert_close(found[:, good], state[:, good], **close)
    torch.testing.assert_close(numbers[good], expected[good], **close)
    assert numbers[[2, 4], 1].isnan().all()  # rows without numbers


def test_truncated_rows_are_those_of_a_cpu_bit_by_bit():
    heats = [0, 0.7, 1, 1.9, 0.2, 1, 1, 0.7, 1.0]
    nums = [5, 2**31 - 1, 7, 1, 40, 2**31 - 1, 3, 90, 2**31 - 1]
    least = [0, -math.inf, -math.inf, -2, -math.inf, -0.5, -1, -math.inf, -math.inf]
    limits = list(zip([0.5, 0.9, 1, 0.8, 0.99, 1, 0.5, 0.01, 0.6], least, strict=True))
    for num, size, decimals in ((9, 100, 1), (2, 10_000, 1), (9, 300, 9)):
        logits = noise(num, size).round(decimals=decimals)  # with ties
        logits[0, 3], logits[-1] = math.nan, 0
        given = torch.tensor(heats[:num]), torch.tensor(nums[:num], dtype=torch.int32)
        given = [*given, torch.tensor(limits[:num], dtype=torch.float64)]
        given = [logits, *(own.to(DEVICE) for own in given)]
        expected = truncate(*(own.cpu() for own in given))
        found = draw_kernels.truncate_rows(*given).cpu()
        assert torch.equal(found.nan_to_num(7.5), expected.nan_to_num(7.5))
        assert 0 < len(expected[-1].isfinite().nonzero()) < size


def test_edited_rows_are_those_of_a_cpu_bit_by_bit():
    logits, numbers = noise(3, 5000, dtype=torch.bfloat16), noise(2000, 3, seed=1).cpu().abs()
    ids = [torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:1000] for _ in "ab"]
    edits = torch.column_stack([torch.cat(ids).int(), numbers.view(torch.int32)]).to(DEVICE)
    ranges = [[0, 1000, 1000, 1007], [0, 0, 0, 0], [700, 1000, 1000, 2000]]
    given = [logits, torch.tensor(ranges, dtype=torch.int32, device=DEVICE), edits]
    masks = torch.randint(256, (3, 625), generator=torch.Generator().manual_seed(3))
    masks[0] = 255
    given.append(torch.tensor([0, 0, 2], dtype=torch.int32, device=DEVICE))
    given.append(masks.to(DEVICE, torch.uint8))
    expected = edit(*(own.cpu() for own in given))
    assert torch.equal(draw_kernels.edit_rows(*given).cpu(), expected)
    changed = (expected != logits.cpu()).sum(1).tolist()
    assert changed[1] == 0
    assert changed[0] > 900
    assert 2000 < expected[2].isfinite().sum() < 3000
