"""Kernels of a GPU: exact, and the same for a token in any company.

Where there is no GPU, Triton interprets the kernels and compiles them for one.
"""

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slipstream.core.tree import TokenTree
from slipstream.models.cuda.draws import draw, edit, truncate
from slipstream.models.cuda.layers import add_norm, gate, place
from slipstream.models.kv.batch import Batch, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.torch.arrays import TorchBuffers, numpy_dtype
from slipstream.models.torch.packing import pack
from slipstream.models.torch.paged import attend, num_places, unpack
from support.models import tiny

kernels = pytest.importorskip("slipstream.models.cuda.kernels")
draw_kernels = pytest.importorskip("slipstream.models.cuda.draw_kernels")
attend_spans = kernels.attend_spans
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


class Sessions:
    """Sessions of some lengths on scattered pages of random keys, and random queries."""

    def __init__(self, lengths, *, group=4, heads=2, size=16, dtype=torch.float32):
        self._rng, self._noise = random.Random(0), torch.Generator().manual_seed(0)
        self.group, self.size = group, size
        layout = KvLayout(1, heads, size, numpy_dtype(dtype), DEVICE)
        count = sum(length // 128 + 3 for length in lengths)
        self.pool = KvPool(layout, count, buffers=TorchBuffers(DEVICE))
        layer = self.pool.layer(0)
        layer.copy_(torch.randn(layer.shape, generator=self._noise))
        self.fresh = torch.randn(len(layer), 66, size, generator=self._noise).to(layer)
        pages = self._rng.sample(range(count), count)
        self.caches = []
        for length in lengths:
            own = [pages.pop() for _ in range(length // 128 + 2)]
            self.caches.append(KvCache.over(self.pool, own, limit=1 << 16))
            self.caches[-1].count = length

    def query(self, num):
        heads = self.pool.layout.num_kv_heads * self.group
        made = torch.randn(num, heads, self.size, generator=self._noise)
        return made.to(self.pool.layer(0))

    def attend(self, parts, query, by=attend_spans, dtype=None):
        batch = Batch.of(parts)
        self.pool.layer(0)[:, batch.slots] = self.fresh[:, batch.tokens]
        packed = pack(batch, num_places(self.group) // self.group)
        values = torch.from_numpy(packed.values).to(DEVICE)
        _, meta = unpack(values, packed.shape)
        table = meta.attended
        given = (query.to(dtype or query.dtype), self.pool.layer(0).to(dtype or query.dtype))
        if by is attend:
            given, table = [own.cpu() for own in given], [own.cpu() for own in table]
        return by(*given, table, self.size**-0.5).cpu()


CASES = [
    ((1,), 0, 1, 1, 64, torch.float32),
    ((3, 127, 128, 700), 7, 4, 2, 16, torch.float32),
    ((200,), 64, 8, 1, 80, torch.float16),
    ((63, 64), 15, 3, 2, 64, torch.bfloat16),
    ((5000,), 2, 4, 1, 32, torch.bfloat16),
]


@pytest.mark.parametrize(("lengths", "nodes", "group", "heads", "size", "dtype"), CASES)
def test_attention_is_what_float64_computes(lengths, nodes, group, heads, size, dtype):
    sessions = Sessions(lengths, group=group, heads=heads, size=size, dtype=dtype)
    parts = [
        Part(cache, [1] * (1 + seed % 2), tiny.tree_of(nodes, seed, 66))
        for seed, cache in enumerate(sessions.caches)
    ]
    query = sessions.query(sum(len(part.pending) + len(part.tree) for part in parts))
    found = sessions.attend(parts, query)
    expected = sessions.attend(parts, query, attend, torch.float64)
    assert (found.double() - expected).abs().max() < TOLERANCE[dtype]


def test_a_token_has_the_same_bits_in_any_batch_tree_and_place():
    sessions = Sessions([60, 150, 700], group=3)
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


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [48, 64])
def test_operators_between_products_are_those_of_a_cpu(dtype, size):
    x, more = (noise(3, 2 * size, seed=seed, dtype=dtype) for seed in (1, 2))
    weight = noise(2 * size, seed=3, dtype=dtype)
    cos, sin, *norms = (noise(3, size, seed=seed, dtype=dtype) for seed in range(4, 8))
    qkv, slots = noise(3, 7 * size, seed=8, dtype=dtype), torch.tensor([4, 0, 2], device=DEVICE)
    layers = [noise(4, 5, size, seed=9, dtype=dtype) for _ in range(2)]
    pairs = [(kernels.gate_rows(x), gate(x))]
    for adds in (more, more[:0]):
        norms_of = (kernels.add_norm_rows, add_norm)
        found, expected = (norm(x, adds, weight, 1e-5) for norm in norms_of)
        pairs += zip(found, expected, strict=True)
    for own in ([], [norm[0] for norm in norms]):
        by = (kernels.place_heads, place)
        given = ([cos, sin, slots], own, 1e-5)
        pairs.append(tuple(f(qkv, layer, *given) for f, layer in zip(by, layers, strict=True)))
        pairs.append(tuple(layer.clone() for layer in layers))
    given = ([cos[:, :16], sin[:, :16], slots], [norms[0][0]], 1e-5)  # a part is turned, no keys
    pairs.append(tuple(f(qkv, layer[:0], *given) for f, layer in zip(by, layers, strict=True)))
    for found, expected in pairs:
        # Triton's interpreter cuts numbers off where a GPU rounds them.
        close = {"rtol": 2 * TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype]}
        torch.testing.assert_close(found, expected, **close)


def test_draws_are_those_of_a_cpu():
    for num, size in ((9, 100), (2, 40_000)):
        logits = noise(num, size).round(decimals=1)  # with ties
        logits[1, 3] = math.nan
        heats = torch.tensor([0, 0.7, 1, 1.9, 0.2, 1, 0, 0.7, 1.0][:num], device=DEVICE)
        keys = torch.arange(2 * num, dtype=torch.int32, device=DEVICE).view(num, 2) * 77_777_777
        assert torch.equal(draw_kernels.draw_tokens(logits, heats, keys), draw(logits, heats, keys))


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


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream.models.cuda import draw_kernels, kernels

NUMBERS = {"scale": "fp32", "eps": "fp32", "slots": "*i64"}
NUMBERS |= dict.fromkeys(("num_pages", "num_slots", "num_keys", "size", "span", "turned"), "i32")
DRAWS = ("find_tops", "find_bests", "find_tokens", "mask_out", "edit", "find_scores", "leave_out")
INDICES = ("keys", "tokens", "tables", "tiles", "counts", "seen", "starts", "paths", "nums")
SIZES = {"GROUP": 4, "HEADS": 32, "WIDTH": 128, "PLACES": 16, "SPANS": 16}
SIZES |= {"ADDS": True, "NORMS": True, "BLOCK": 1024, "PARTS": 32, "FIRST": 2}
WIDE = ("sums", "peaks", "totals", "tops", "scores", "masses", "heats")
NUMBERS |= {"limits": "*fp64"} | dict.fromkeys(("ranges", "edits", "places"), "*i32")
NUMBERS |= {"num_bytes": "i32", "masks": "*u8"}
NUMBERS |= dict.fromkeys(INDICES, "*i32") | dict.fromkeys(WIDE, "*fp32")
for dtype in ("bf16", "fp32"):
    sizes = {**SIZES, "WIDE": dtype == "fp32"}
    for name in ("attend_spans", "add_spans", "add_norm", "place", "gate", *DRAWS):
        kernel = getattr(draw_kernels if name in DRAWS else kernels, "_" + name)
        own = {name: sizes[name] for name in kernel.arg_names if name in sizes}
        types = {name: NUMBERS.get(name, "*" + dtype) for name in kernel.arg_names}
        types |= dict.fromkeys(own, "constexpr")
        source = ASTSource(fn=kernel, signature=types, constexprs=own)
        options = {"enable_fp_fusion": True}
        for version in (80, 90):
            made = triton.compile(source, target=GPUTarget("cuda", version, 32), options=options)
            assert made.metadata.shared < 99 << 10
"""


def test_the_kernels_compile_for_gpus_and_fit_their_memory(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
