"""The distribution to sample from: raw logits and the tokens before them become scores.

What a constraint allows, bias, penalties, temperature, top-k, top-p, min-p, in that order, each
on what the one before left over. Works on one row at a time, because only the positions that a walk
visits need a distribution. Every order is (value descending, id ascending): ties are the rule in
bf16, and an unstable order would make two replicas disagree.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ModelError
from slipstream.core.types import SamplingParams, Session
from slipstream.core.verify.noise import Floats, Ids


class Constraint(Protocol):
    """The tokens that a request's output may go on with."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.int64] | None:
        """Ids [n] int64, ascending, at least one, of what may follow `output`, which is all of
        the request's own tokens before the position; None for anything.

        Raises `InvalidRequest` for an output that has left the form, and where it can't be
        followed any further.
        """

    def forced(self, output: Sequence[int]) -> tuple[int, ...]:
        """Return tokens that the form will most likely have follow `output`; a guess, not a rule.

        Raises what `allowed` does.
        """


_BLOCK = 32


def ordered_top(scores: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """The `k` best of `scores` [V] fp32 with their ids, both [min(k, V)].

    Value descending, id ascending, also where the k-th value is tied; never a sort of the row.
    Raises `ModelError` for scores that are no numbers.

    The k-th largest of the maxima of disjoint blocks bounds the k-th value from below, and is
    cheap; everything tied with the k-th value reaches it. The few that do are sorted.
    """
    size = len(scores)
    k = min(k, size)
    num_blocks = size // _BLOCK
    pool = scores
    if num_blocks >= 2 * k:
        pool = scores[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(0)
    bound = pool.max() if k == 1 else np.partition(pool, len(pool) - k)[len(pool) - k]
    ids = np.flatnonzero(scores >= bound)
    if len(ids) < k:  # what is no number compares with none
        raise ModelError("a position has scores that are no numbers")
    best = ids[np.argsort(-scores[ids], kind="stable")[:k]]
    return scores[best], best


def argmax_first(scores: Floats) -> int:
    """Id of the largest of `scores` [V], the smallest id among equals.

    Raises `ModelError` where the largest is infinite or no number: no token would be right.
    """
    best = int(scores.argmax())
    if not math.isfinite(largest := float(scores[best])):
        raise ModelError(f"the best score of a position is {largest}, so no token can be chosen")
    return best


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """Return the softmax of `scores` [n], of which the best is finite, in their dtype."""
    probs: NDArray[Any] = np.exp(scores - scores.max())
    probs /= probs.sum()
    return probs


Edits = NDArray[np.int32]
"""Changes of logits [n, 4], no token twice: its id, and as the bits of fp32 numbers what is added
to its logit, what then divides it, or multiplies a negative one, and what is added at last."""
Paths = Iterable[Sequence[int]]
_FIRST_NUCLEUS = 64
_NUCLEUS_GROWTH = 4
MASS_UNITS = 2.0**35
"""Units of the best token's mass: whole units have the same sum in any order."""
_UNSURE = 2.0**-15
"""Part of a mass by which sums in float32's precision may be wrong, and more."""
Measure = Callable[[Floats], Floats]


def masses(distances: Floats) -> Floats:
    """Return the masses [n] fp32, in whole units, of tokens whose scores are `distances` [n] from
    the best: sums of them in float64 are exact."""
    probs = np.exp(distances, dtype=np.float64).astype(np.float32)
    units: Floats = np.trunc(probs * np.float32(MASS_UNITS))
    return units


@dataclass(frozen=True, slots=True)
class SamplingDistribution:
    """Turns logits into the distribution of a position, for one request.

    `prefix` is every token of the session before the position, the path of its tree node included:
    the repetition penalty counts all of them, presence and frequency those from
    `num_prompt_tokens` on, which are the output that a `constraint` is about. What it does not
    allow is in no distribution, whatever the rest adds. Its errors are those of every method.
    `ends` are the tokens that end the output, which has `min_tokens` before them.
    """

    sampling: SamplingParams
    num_prompt_tokens: int
    constraint: Constraint | None = None
    ends: Set[int] = frozenset()

    def scores(self, logits: Floats, prefix: Sequence[int]) -> Floats:
        """Unnormalised log-probabilities [V] fp32, -inf outside the distribution's support.

        `logits` [V] are left as they are, and returned as they are when nothing applies.
        Greedy requests have no temperature and no truncation: only the order counts there.
        """
        return _dense(*self.support(logits, prefix), len(logits), -math.inf)

    def probs(self, logits: Floats, prefix: Sequence[int]) -> Floats:
        """The distribution as probabilities [V]; one-hot when greedy."""
        values, ids = self.support(logits, prefix)
        if self.sampling.is_greedy:
            probs = np.zeros_like(values)
            probs[argmax_first(values)] = 1
        else:
            probs = softmax(values)
        return _dense(probs, ids, len(logits), 0)

    def support(self, logits: Floats, prefix: Sequence[int]) -> tuple[Floats, Ids | None]:
        """Scores [n] of the distribution's support and its ids [n], ascending; None is all of V."""
        scores, allowed = self._penalised(logits, prefix), None
        if self.constraint is not None:
            allowed = self.constraint.allowed(prefix[self.num_prompt_tokens :])
            scores = scores if allowed is None else scores[allowed]
        if self.sampling.is_greedy:
            return scores, allowed
        values, ids = self._heated(scores)
        if allowed is not None:
            ids = allowed if ids is None else allowed[ids]
        return values, ids

    def _heated(self, scores: Floats) -> tuple[Floats, Ids | None]:
        best = float(scores.max())
        if not math.isfinite(best):
            raise ModelError(f"the best score of a position is {best}, so its distribution is none")
        if self.sampling.temperature != 1:
            # Relative to the best, so that no temperature, however low, overflows.
            scores = scores - best
            scores /= self.sampling.temperature
            best = 0.0
        return self._truncated(scores, best)

    def edits(self, prefix: Sequence[int], paths: Paths = ()) -> Iterator[Edits]:
        """Yield what bias and penalties change behind `prefix`, and then what else they do behind
        each of the `paths` of tokens below it."""
        sampling, biases = self.sampling, dict(self.sampling.logit_bias)
        is_counted = (sampling.presence_penalty, sampling.frequency_penalty) != (0, 0)
        output = prefix[self.num_prompt_tokens :]
        counts = Counter(output if is_counted else ())
        seen = set(prefix if sampling.repetition_penalty != 1 else ())
        yield self._edits(biases, seen, counts, len(output))
        for path in paths:
            tokens = {*path, *(self.ends if sampling.min_tokens else ())}
            yield self._edits(
                {token: biases.get(token, 0.0) for token in tokens},
                {token for token in tokens if token in seen or (seen and token in path)},
                Counter({token: counts[token] for token in tokens if counts[token]})
                + Counter(path if is_counted else ()),
                len(output) + len(path),
            )

    def _edits(
        self, biases: Mapping[int, float], seen: Set[int], counts: Mapping[int, int], size: int
    ) -> Edits:
        """Return the edits behind an output of so many tokens."""
        sampling = self.sampling
        banned = self.ends if size < sampling.min_tokens else ()
        ids = np.array(sorted({*biases, *seen, *counts, *banned}), np.int32)
        edits = np.zeros((len(ids), 4), np.int32)
        edits[:, 0] = ids
        numbers = edits.view(np.float32)
        numbers[:, 2] = 1
        presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
        columns: tuple[tuple[int, Collection[int], Any], ...] = (
            (1, biases, list(biases.values())),
            (2, seen, sampling.repetition_penalty),
            (3, counts, [-presence - frequency * count for count in counts.values()]),
            (3, banned, -np.inf),
        )
        for column, tokens, values in columns:
            if tokens:
                numbers[np.searchsorted(ids, list(tokens)), column] = values
        return edits

    def _penalised(self, logits: Floats, prefix: Sequence[int]) -> Floats:
        if not (self.sampling.logit_bias or self.sampling.depends_on_prefix):
            return logits
        (edits,) = self.edits(prefix)
        ids, (_, biases, penalties, added) = edits[:, 0], edits.view(np.float32).T
        scores, own = logits.copy(), logits[ids] + biases
        # Positive scores are divided, negative ones multiplied (Keskar et al. 2019).
        scores[ids] = np.where(own < 0, own * penalties, own / penalties) + added
        return scores

    def _truncated(self, scores: Floats, best: float) -> tuple[Floats, Ids | None]:
        sampling = self.sampling
        values = scores
        ids: Ids | None = None
        if sampling.top_k is not None and sampling.top_k < len(scores):
            values, ids = ordered_top(scores, sampling.top_k)
        if sampling.top_p < 1:
            values, ids = _nucleus(values, ids, best=best, top_p=sampling.top_p)
        if sampling.min_p > 0:
            kept = np.flatnonzero(values >= best + math.log(sampling.min_p))
            values, ids = values[kept], kept if ids is None else ids[kept]
        if ids is None:
            return values, None
        order = np.argsort(ids)
        return values[order], ids[order]


def distribution_of(session: Session, constraint: Constraint | None) -> SamplingDistribution:
    """Return the distribution of a session's positions."""
    ends = session.stop_token_ids
    return SamplingDistribution(session.sampling, session.num_prompt_tokens, constraint, ends)


def _dense(values: Floats, ids: Ids | None, size: int, filler: float) -> Floats:
    """Return `values` [n] at their `ids` [n] among `size` ones; None stands for all."""
    if ids is None:
        return values
    dense = np.full(size, filler, values.dtype)
    dense[ids] = values
    return dense


def _nucleus(
    scores: Floats, ids: Ids | None, *, best: float, top_p: float, measure: Measure = np.exp
) -> tuple[Floats, Ids]:
    """The fewest best tokens whose mass reaches `top_p`; at least one.

    `scores` are in order already when `ids` are given. Else the best are selected, more and
    more of them until the mass is reached; peaked distributions need one small selection. Masses
    are those of `masses`, which are computed only where others don't decide.
    """
    limit = top_p * measure(scores - best).sum(dtype=np.float64)
    size = len(scores)
    k = size if ids is not None else min(size, _FIRST_NUCLEUS)
    while True:
        values, order = (scores, ids) if ids is not None else ordered_top(scores, k)
        mass = measure(values - best).cumsum(dtype=np.float64)
        if k == size or mass[-1] >= limit:
            kept = 1 + np.count_nonzero(mass[:-1] < limit)
            border = mass[max(kept - 2, 0) : kept]
            if measure is not masses and np.abs(border - limit).min() < _UNSURE * limit:
                return _nucleus(scores, ids, best=best, top_p=top_p, measure=masses)
            return values[:kept], order[:kept]
        k = min(size, k * _NUCLEUS_GROWTH)
