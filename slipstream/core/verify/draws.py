"""Draws by a device for all rows at once, or from a softmax among few tokens.

The token of a position then depends on its row alone: a device draws for all rows
(`models/cuda/draws.py`), and the walk follows one vector of tokens; native code finds the few
tokens whose noise decides. These are the very tokens of `core.verify.verify`, in mode `exact` only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ModelError
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import SamplingParams, Session, Verification
from slipstream.core.verify.distribution import argmax_first
from slipstream.core.verify.keyed_noise import Purpose, noise_keys, signed
from slipstream.core.verify.noise import Floats, Ids, gumbel
from slipstream.core.verify.walk import Walk

NO_TOKEN = -1
"""Stands for the token of a row whose scores are no distribution."""
FindContenders = Callable[[Floats, float, tuple[int, int]], tuple[NDArray[np.int32], float] | None]
"""Logits [V] fp32, a temperature above 0 and `draw_keys` to the ids [n] int32, ascending, of tokens
among which is the draw, and the largest logit; None for logits that are no distribution."""


def is_plain_softmax(sampling: SamplingParams) -> bool:
    """Return whether nothing but the temperature stands between logits and distribution."""
    return sampling.is_greedy or (
        sampling.top_k is None and sampling.top_p == 1 and sampling.min_p == 0
    )


def is_softmax(sampling: SamplingParams) -> bool:
    """Return whether tokens are drawn from the softmax of the logits over a temperature."""
    is_untouched = not (sampling.logit_bias or sampling.depends_on_prefix)
    return is_untouched and is_plain_softmax(sampling)


def fits_device(session: Session) -> bool:
    """Return whether rows may draw on their own: mode `exact`, no log-probabilities."""
    return session.verification is Verification.EXACT and session.num_logprobs is None


def draw_keys(sampling: SamplingParams, position: int) -> tuple[int, int]:
    """Keys of a row's noise, at `position`, as signed numbers; a greedy request needs none."""
    if sampling.is_greedy:
        return 0, 0
    first, second = noise_keys(sampling.seed, position, Purpose.DRAW)
    return signed(first), signed(second)


def draw_keys_of(samplings: Sequence[SamplingParams], positions: Ids) -> NDArray[np.int32]:
    """Return `draw_keys` [2, N, n] of each request at its positions [N, n]; those of a greedy one
    are of no use."""
    seeds: Any = np.array([[own.seed] for own in samplings], np.uint64)
    each: Any = positions.astype(np.uint64)
    return np.stack(noise_keys(seeds, each, Purpose.DRAW)).astype(np.uint32).view(np.int32)


def draw_among(
    logits: Floats, sampling: SamplingParams, position: int, find: FindContenders
) -> int | None:
    """Return the draw of a sampled request out of few tokens; None where `find` has none."""
    found = find(logits, sampling.temperature, draw_keys(sampling, position))
    if found is None:
        return None
    ids, best = found
    if len(ids) == 1:
        return int(ids[0])
    scores = logits[ids]
    if sampling.temperature != 1:
        scores -= best
        scores /= sampling.temperature
    return best_with_noise(scores, ids, seed=sampling.seed, position=position)


def best_with_noise(scores: Floats, ids: Ids, *, seed: int, position: int) -> int:
    """Return the id whose score [n] is the largest with its noise: the draw at `position`."""
    noisy = gumbel(seed, position, ids, purpose=Purpose.DRAW)
    noisy += scores
    return int(ids[argmax_first(noisy)])


def walk_drawn(tree: TokenTree, tokens: Sequence[int]) -> Walk:
    """Follow the tokens drawn by the rows, `tokens[node + 1]` by that of `node`, down the tree.

    Raises `ModelError` where the walk meets a row without a distribution.
    """
    node = ROOT
    nodes: list[int] = []
    while True:
        token = tokens[node + 1]
        if token == NO_TOKEN:
            raise ModelError("a position has scores that are no distribution")
        below = (child for child in tree.children(node) if tree.tokens[child] == token)
        node = next(below, ROOT)
        if node == ROOT:
            return Walk(tuple(nodes), token)
        nodes.append(node)
