"""Candidates of a position out of the draft's logits, with probabilities, entropy, distribution.

Candidates of `exact` verification are the best of the draft's distribution perturbed with the
target's own noise, those of `mcsd` are draws. Probabilities and entropy are always those of the raw
distribution at temperature 1, which the stop rules and CaPE were calibrated on. All positions
of a step are read together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from slipstream.core.draft.candidates import (
    coupled,
    draw_with_replacement,
    draw_without_replacement,
    ordered_top,
    sparse_distribution,
)
from slipstream.core.errors import ModelError
from slipstream.core.types import NodeStats, Session, SparseDistribution, Verification
from slipstream.core.verify.distribution import SamplingDistribution
from slipstream.models.decision import GREEDY, LEAST, SAMPLED, slot_stats
from slipstream.models.glide.glide_chains import ChainPosition
from slipstream.models.scorer import Scores

DISTRIBUTION_SIZE = 64
"""Tokens of the truncated distribution that multi-candidate sampling draws from."""


Score = Callable[[Tensor, Tensor], Tensor]
"""`DecisionModel.score`: hidden states [R, d] and `slot_stats` [R, 4] to probabilities [R, 2]."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The draft's candidates for one position; `tokens` are the best or the first drawn first."""

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None
    distribution: SparseDistribution | None = None

    def stats(self, token: int) -> NodeStats:
        """Return the statistics of the node that carries `token` here."""
        prob = self.probs[self.tokens.index(token)]
        return NodeStats(self.top_prob, prob, self.entropy, self.score)


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

    def __init__(self, session: Session, vocab: Tensor | None, score: Score | None = None) -> None:
        self.vocab = vocab
        self.score = score
        self.score_column = GREEDY if session.sampling.is_greedy else SAMPLED
        self._session = session
        sampling = session.sampling
        mcsd = (Verification.MCSD, Verification.MCSD_REPLACEMENT)
        self._needs_distribution = session.verification in mcsd
        self._takes_best = sampling.is_greedy or session.verification is Verification.EXACT
        self.is_plain = sampling.is_greedy and not self._needs_distribution
        """Whether the candidates are the best of the raw distribution, without a distribution."""
        # Penalties and bias are applied by the target: they would need the whole vocabulary here.
        distribution = replace(
            sampling,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias=(),
        )
        self._distribution = SamplingDistribution(distribution, session.num_prompt_tokens)

    def candidates(
        self, logits: Tensor, position: int, count: int
    ) -> tuple[Tensor, SparseDistribution | None]:
        """Return columns [n <= count] of a position's logits [V_d], and their distribution."""
        if not self._takes_best:
            return self._drawn(logits, position, count)
        # A greedy target accepts its own token whatever the distribution, but needs one.
        distribution = (
            self._named(sparse_distribution(logits, max(DISTRIBUTION_SIZE, count)))
            if self._needs_distribution
            else None
        )
        return self._best(logits, position, count), distribution

    def _best(self, logits: Tensor, position: int, count: int) -> Tensor:
        sampling = self._session.sampling
        if sampling.is_greedy:
            return _best(logits[None], count)[1][0]
        scores, columns = self._distribution.support(logits, ())
        ids = self._ids_of(columns, logits)
        noisy = coupled(scores, sampling.seed, position=position, ids=ids)
        best = _best(noisy[None], count)[1][0]
        return best if columns is None else columns[best]

    def _drawn(
        self, logits: Tensor, position: int, count: int
    ) -> tuple[Tensor, SparseDistribution]:
        distribution = sparse_distribution(self._distribution.scores(logits, ()), DISTRIBUTION_SIZE)
        is_repeating = self._session.verification is Verification.MCSD_REPLACEMENT
        draw = draw_with_replacement if is_repeating else draw_without_replacement
        named = self._named(distribution)
        tokens = draw(named, count, seed=self._session.sampling.seed, position=position)
        column_of = dict(zip(named.tokens, distribution.tokens, strict=True))
        columns = torch.tensor([column_of[token] for token in tokens], device=logits.device)
        return columns, named

    def _named(self, distribution: SparseDistribution) -> SparseDistribution:
        if self.vocab is None:
            return distribution
        columns = torch.tensor(distribution.tokens, dtype=torch.long, device=self.vocab.device)
        return SparseDistribution(tuple(self.vocab[columns].tolist()), distribution.probs)

    def _ids_of(self, columns: Tensor | None, logits: Tensor) -> Tensor | int:
        if columns is None:
            return logits.shape[0] if self.vocab is None else self.vocab
        return columns if self.vocab is None else self.vocab[columns]


@dataclass(frozen=True, slots=True)
class _CandidateColumns:
    """Columns of each row's candidates: `columns` [R, k], of which `sizes[row]` count.

    `is_best` is set if they are the likeliest ones, in order.
    """

    columns: Tensor
    sizes: Sequence[int]
    distributions: Sequence[SparseDistribution | None]
    is_best: bool


def chain_candidates(chain: Sequence[ChainPosition]) -> list[Candidates] | Exception:
    """Return the candidates of a chain that a device has computed, or the error of its scores."""
    if any(math.isnan(at.top_prob) for at in chain):
        return _not_a_distribution()
    return [Candidates(at.tokens, at.probs, at.top_prob, at.entropy, at.score) for at in chain]


def read_each(scores: Scores, parts: Sequence[CandidateRows]) -> list[list[Candidates] | Exception]:
    """Read candidates as `read_candidates`; an error is that of one part alone."""
    try:
        return list(read_candidates(scores, parts)) if parts else []
    except Exception as error:
        if len(parts) == 1:
            return [error]
    found: list[list[Candidates] | Exception] = []
    end = 0
    for part in parts:
        rows = slice(end, end := end + len(part.positions))
        found += read_each(Scores(scores.logits[rows], scores.hidden[rows]), [part])
    return found


def read_candidates(scores: Scores, parts: Sequence[CandidateRows]) -> list[list[Candidates]]:
    """Return the candidates of all rows of a step, part by part. Readers share a vocabulary.

    One transfer from the device, and one more where a decision model is used; sampled candidates
    are drawn row by row. Raises `ModelError` for scores that are no numbers.
    """
    scoring = next((part.reader.score for part in parts if part.reader.score is not None), None)
    num_tops = 1 if scoring is None else 2
    picked = _pick(scores.logits, parts, num_tops=num_tops)
    table = _table(scores.logits, picked, parts[0].reader.vocab, num_tops=num_tops)
    decided = _decision_scores(scores.hidden, parts, table, scoring)
    found = iter(
        _candidates(numbers, 1 + num_tops, picked, row, decided[row])
        for row, numbers in enumerate(table)
    )
    return [[next(found) for _ in part.positions] for part in parts]


def _candidates(
    numbers: Sequence[float], start: int, picked: _CandidateColumns, row: int, score: float | None
) -> Candidates:
    """Return one row's candidates out of its numbers: see `_table`. Probabilities begin at
    `start`."""
    if math.isnan(numbers[start]):
        raise _not_a_distribution()
    size = picked.sizes[row]
    probs_at = start if picked.is_best else start + 1
    ids_at = len(numbers) - picked.columns.size(1)
    tokens = tuple(map(int, numbers[ids_at : ids_at + size]))
    probs = tuple(numbers[probs_at : probs_at + size])
    return Candidates(tokens, probs, numbers[start], numbers[0], score, picked.distributions[row])


def _pick(logits: Tensor, parts: Sequence[CandidateRows], *, num_tops: int) -> _CandidateColumns:
    sizes = [part.count for part in parts for _ in part.positions]
    if all(part.reader.is_plain for part in parts):
        columns = _best(logits, max(num_tops, *sizes))[1]
        width = columns.shape[1]
        sizes = [min(size, width) for size in sizes]
        return _CandidateColumns(columns, sizes, [None] * len(sizes), is_best=True)
    rows = ((part, position) for part in parts for position in part.positions)
    pairs = [
        part.reader.candidates(logits[row], position, part.count)
        for row, (part, position) in enumerate(rows)
    ]
    drawn = [columns for columns, _ in pairs]
    columns = drawn[0][None] if len(drawn) == 1 else pad_sequence(drawn, batch_first=True)
    distributions = [distribution for _, distribution in pairs]
    return _CandidateColumns(columns, list(map(len, drawn)), distributions, is_best=False)


def _table(
    logits: Tensor, picked: _CandidateColumns, vocab: Tensor | None, *, num_tops: int
) -> list[list[float]]:
    """Return the numbers of each row: its entropy, its `num_tops` highest log-probabilities, the
    highest probability unless it is the first candidate's, and the candidates' probabilities and
    ids."""
    log_probs = torch.log_softmax(logits, -1)
    seen = log_probs.gather(1, picked.columns)
    tops = seen[:, :num_tops] if picked.is_best else _tops(log_probs, num_tops)
    ids = picked.columns if vocab is None else vocab[picked.columns]
    probs = (seen if picked.is_best else torch.cat([tops[:, :1], seen], 1)).exp()
    entropy = row_entropies(log_probs)[:, None]
    # A float holds any id below 2^24 as it is, and saves a second transfer.
    table: list[list[float]] = torch.cat([entropy, tops, probs, ids.float()], 1).tolist()
    return table


def _tops(log_probs: Tensor, count: int) -> Tensor:
    return log_probs.amax(-1, keepdim=True) if count == 1 else _best(log_probs, count)[0]


def _best(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `ordered_top` of rows, by the shortest way."""
    if count == 1 and rows.device.type == "cpu":  # numpy takes the first of equals, and is quick
        ids = torch.from_numpy(rows.numpy().argmax(-1, keepdims=True))
        return rows.gather(1, ids), ids
    if rows.size(0) > 1:
        return ordered_top(rows, count)
    values, ids = ordered_top(rows[0], count)
    return values[None], ids[None]


def _decision_scores(
    hidden: Tensor,
    parts: Sequence[CandidateRows],
    table: Sequence[Sequence[float]],
    scoring: Score | None,
) -> list[float | None]:
    """Return the decision model's score of each row whose reader uses it."""
    if scoring is None:
        return [None] * len(table)
    readers = [part.reader for part in parts for _ in part.positions]
    lags = (lag for part in parts for lag in part.lags)
    stats = [
        slot_stats(numbers[1:3], numbers[0], lag) for numbers, lag in zip(table, lags, strict=True)
    ]
    scored = scoring(hidden, torch.tensor(stats, device=hidden.device)).tolist()
    found = [row[reader.score_column] for row, reader in zip(scored, readers, strict=True)]
    return [
        None if reader.score is None or math.isnan(score) else score
        for reader, score in zip(readers, found, strict=True)
    ]


def _not_a_distribution() -> ModelError:
    return ModelError("the draft's scores of a slot are no numbers, or all infinite")


def row_entropies(log_probs: Tensor) -> Tensor:
    """Return the entropy in nats of distributions with these logarithms, [R, V] to [R]."""
    probs, logs = log_probs.exp(), log_probs.clamp(min=LEAST)
    if probs.size(0) == 1:  # a product of vectors takes the shortest way
        return torch.dot(probs[0], logs[0]).neg_()[None]
    negative: Tensor = torch.linalg.vecdot(probs, logs)
    return negative.neg_()
