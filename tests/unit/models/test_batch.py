"""A batch has every token at its position, and shows it the keys of its own path and no others."""

import random

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.tree import TokenTree
from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.batch import Batch, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvLayout, KvPool

LAYOUT = KvLayout(1, 1, 4, FLOAT32, CPU)


def part_of(pool, rng, number):
    count, num_pending, size = rng.randrange(130), rng.randrange(1, 4), rng.randrange(12)
    cache = KvCache(pool, limit=512)
    cache.reserve(count + num_pending)
    cache.count = count
    parents = tuple(rng.randrange(-1, node) for node in range(size))
    tokens = tuple(100 * number + node for node in range(size))
    return Part(cache, list(range(num_pending)), TokenTree(tokens, parents))


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_token_sees_the_slots_of_its_path_in_the_order_of_positions(seed, num_sessions):
    rng, pool = random.Random(seed), KvPool(LAYOUT, 8)
    parts = [part_of(pool, rng, number) for number in range(num_sessions)]
    batch = Batch.of(parts)
    assert batch.tokens == [at for part in parts for at in (*part.pending, *part.tree.tokens)]
    assert len(set(batch.slots)) == len(batch)
    first = 0
    for part, own in zip(parts, batch.slots_by_part(), strict=True):
        prompt = [part.cache.slot(position) for position in range(part.end)]
        nodes = own[len(part.pending) :]
        paths = [prompt[: part.cache.count + row + 1] for row in range(len(part.pending))]
        paths += [
            [*prompt, *(nodes[step] for step in part.tree.path(node))]
            for node in range(len(part.tree))
        ]
        for row, path in enumerate(paths, start=first):
            table = batch.block_tables[row].table()[: batch.num_seen[row]].tolist()
            assert [*table, *batch.ancestors[row]] == path
            assert batch.positions[row] == len(path) - 1
            assert batch.slots[row] == path[-1]
        first += len(own)
