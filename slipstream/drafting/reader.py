"""Candidates of a position out of the draft's logits, with probabilities, entropy, distribution.

Candidates of `exact` verification are the best of a ranked row: the draft's logits, for a sampled
request perturbed with the target's own noise. Probabilities, entropy and the decision model's
statistics are of that row's softmax, which the stop rules and CaPE were calibrated on. Those of
`mcsd` are draws, with the statistics of the logits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slipstream.core.draft.candidates import (
    SHARPNESS,
    coupled,
    draw_with_replacement,
    draw_without_replacement,
    sparse_distribution,
)
from slipstream.core.errors import ModelError
from slipstream.core.types import SamplingParams, Session, SparseDistribution, Verification
from slipstream.core.verify.distribution import SamplingDistribution, ordered_top
from slipstream.core.verify.noise import Floats, Ids
from slipstream.models.decision import GREEDY, LEAST, SAMPLED, slot_stats
from slipstream.models.scorer import Candidates, Scores

DISTRIBUTION_SIZE = 64
"""Tokens of the truncated distribution that multi-candidate sampling draws from."""

_NO_DISTRIBUTION = "the draft's scores of a slot are no numbers, or all infinite"
Score = Callable[[Floats, Floats], Floats]
"""`DecisionModel.score`: hidden states [R, d] and `slot_stats` [R, 4] to probabilities [R, 2]."""


@dataclass(frozen=True, slots=True)
class CandidateRows:
    """Rows of a step that one reader reads: those of `positions`, each for up to `count`
    candidates; `lags` are their distances to the newest target key."""

    reader: "CandidateReader"
    positions: Sequence[int]
    lags: Sequence[int]
    count: int


class CandidateReader:
    """Chooses candidates for one request. `vocab` [V_d] maps the draft's columns to token ids."""

    def __init__(
        self, session: Session, vocab: NDArray[np.int64] | None, score: Score | None = None
    ) -> None:
        self.vocab = vocab
        self.limit = session.vocab_size if vocab is None else None
        self.score = score
        self.score_column = GREEDY if session.sampling.is_greedy else SAMPLED
        self._session = session
        sampling = session.sampling
        mcsd = (Verification.MCSD, Verification.MCSD_REPLACEMENT)
        self._needs_distribution = session.verification in mcsd
        self._takes_best = sampling.is_greedy or session.verification is Verification.EXACT

    @cached_property
    def _distribution(self) -> SamplingDistribution:
        # Penalties and bias are applied by the target: they would need the whole vocabulary here.
        own = self._session.sampling
        sampling = SamplingParams(own.temperature, own.top_k, own.top_p, own.min_p, seed=own.seed)
        return SamplingDistribution(sampling, self._session.num_prompt_tokens)

    def ranked(self, logits: Floats, position: int) -> Floats:
        """Return the scores [V_d] that a position's candidates are ranked by, best first.

        Tokens that the request's truncation leaves out are behind all others, in raw order: the
        target may keep them. Noise has no say where it leaves one token; the row is read as a
        greedy one then.
        """
        sampling = self._session.sampling
        if sampling.is_greedy or not self._takes_best:
            return logits
        scores, columns = self._distribution.support(logits, ())
        if columns is None:
            ids = len(logits) if self.vocab is None else self.vocab
            return coupled(scores, sampling.seed, position=position, ids=ids)
        if len(columns) == 1:
            return logits
        others = (logits - logits.max()) / np.float32(sampling.temperature)
        inside = coupled(others[columns], sampling.seed, position=position, ids=self.ids(columns))
        return _first(inside, columns, SHARPNESS * others)

    def candidates(
        self, ranked: Floats, position: int, count: int
    ) -> tuple[Ids, SparseDistribution | None]:
        """Return columns [n <= count] of a position's ranked row [V_d], and their distribution."""
        if not self._takes_best:
            return self._drawn(ranked, position, count)
        # A greedy target accepts its own token whatever the distribution, but needs one.
        distribution = (
            self._named(sparse_distribution(ranked, max(DISTRIBUTION_SIZE, count)))
            if self._needs_distribution
            else None
        )
        return ordered_top(ranked, count)[1], distribution

    def _drawn(self, logits: Floats, position: int, count: int) -> tuple[Ids, SparseDistribution]:
        distribution = sparse_distribution(self._distribution.scores(logits, ()), DISTRIBUTION_SIZE)
        is_repeating = self._session.verification is Verification.MCSD_REPLACEMENT
        draw = draw_with_replacement if is_repeating else draw_without_replacement
        named = self._named(distribution)
        tokens = draw(named, count, seed=self._session.sampling.seed, position=position)
        column_of = dict(zip(named.tokens, distribution.tokens, strict=True))
        return np.array([column_of[token] for token in tokens]), named

    def _named(self, distribution: SparseDistribution) -> SparseDistribution:
        if self.vocab is None:
            return distribution
        tokens = self.vocab[list(distribution.tokens)].tolist()
        return SparseDistribution(tuple(tokens), distribution.probs)

    def ids(self, columns: Ids) -> Ids:
        """Return the token ids [n] of columns [n]."""
        return columns if self.vocab is None else self.vocab[columns]


def _first(inside: Floats, columns: Ids, others: Floats) -> Floats:
    """Return scores [V]: `inside` [n] at their `columns`, and `others` [V] elsewhere, lowered by
    one number if the best of them is not below all of `inside`."""
    others[columns] = -math.inf
    worst = max(inside.min(), np.float32(LEAST / 2))
    others -= max(others.max() - worst, 0)
    np.minimum(others, np.nextafter(worst, np.float32(-math.inf)), out=others)
    others[columns] = inside
    return others


class RowSoftmax:
    """Softmax of ranked rows [R, V], of which few probabilities are read."""

    def __init__(self, rows: Floats) -> None:
        """Raise `ModelError` where a row is no distribution. `entropies` [R] are in nats."""
        with np.errstate(all="ignore"):
            relative = rows - rows.max(-1, keepdims=True)
            np.maximum(relative, LEAST, out=relative)
            weights = np.exp(relative)
            masses = weights.sum(-1)
            weights *= relative
            self.entropies: Floats = np.log(masses) - weights.sum(-1) / masses
        if np.isnan(self.entropies).any():
            raise ModelError(_NO_DISTRIBUTION)
        self.rows, self._relative, self._masses = rows, relative, masses

    def probs(self, row: int, columns: Ids) -> list[float]:
        """Return the probabilities of some columns [n] of a row."""
        probs: list[float] = (np.exp(self._relative[row, columns]) / self._masses[row]).tolist()
        return probs

    def top_prob(self, row: int) -> float:
        """Return the highest probability of a row."""
        return float(1 / self._masses[row])

    def best_two(self, row: int) -> tuple[float, float]:
        """Return the two highest log-probabilities of a row."""
        others, log_mass = self._relative[row].copy(), math.log(self._masses[row])
        others[others.argmax()] = LEAST
        return -log_mass, float(others.max()) - log_mass


def chain_candidates(chain: list[Candidates]) -> list[Candidates] | Exception:
    """Return the candidates of a chain that a device has computed, or the error of its scores."""
    if any(math.isnan(step.top_prob) for step in chain):
        return ModelError(_NO_DISTRIBUTION)
    return chain


def read_each(scores: Scores, parts: Sequence[CandidateRows]) -> list[list[Candidates] | Exception]:
    """Read the candidates of a step part by part; an error is that of one part alone."""
    found: list[list[Candidates] | Exception] = []
    end = 0
    for part in parts:
        rows = slice(end, end := end + len(part.positions))
        try:
            found.append(read_candidates(Scores(scores.logits[rows], scores.hidden[rows]), part))
        except Exception as error:
            found.append(error)
    return found


def read_candidates(scores: Scores, part: CandidateRows) -> list[Candidates]:
    """Return the candidates of a session's rows. Raises `ModelError` for scores that are no
    numbers."""
    limit = part.reader.limit
    pairs = zip(scores.logits[:, :limit], part.positions, strict=True)
    softmax = RowSoftmax(np.stack([part.reader.ranked(row, position) for row, position in pairs]))
    decided = _decision_scores(scores.hidden, softmax, part)
    return [
        _candidates(part, position, softmax, row, decided[row])
        for row, position in enumerate(part.positions)
    ]


def _candidates(
    part: CandidateRows, position: int, softmax: RowSoftmax, row: int, score: float | None
) -> Candidates:
    columns, distribution = part.reader.candidates(softmax.rows[row], position, part.count)
    tokens, probs = part.reader.ids(columns).tolist(), softmax.probs(row, columns)
    numbers = softmax.top_prob(row), float(softmax.entropies[row]), score
    return Candidates(tuple(tokens), tuple(probs), *numbers, distribution)


def _decision_scores(
    hidden: Floats, softmax: RowSoftmax, part: CandidateRows
) -> Sequence[float | None]:
    """Return the decision model's score of each row, if the reader uses it."""
    if part.reader.score is None:
        return [None] * len(part.lags)
    stats = [
        slot_stats(softmax.best_two(row), float(softmax.entropies[row]), lag)
        for row, lag in enumerate(part.lags)
    ]
    found = part.reader.score(hidden, np.array(stats, np.float32))[:, part.reader.score_column]
    return [None if math.isnan(score) else score for score in found.tolist()]
