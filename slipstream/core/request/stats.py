"""Speculation statistics of a request. Names are those of vLLM's per-request acceptance metrics."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.core.round import Round
from slipstream.core.tree import CopySource

LOOKUP, STORE, GRAMMAR = CopySource

MAX_PER_STEP = 1024
"""Steps, the newest ones, of which statistics have the outcome one by one."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Figures of one request, or of several put together.

    A *step* is a round in which something was drafted; rounds without are plain steps. Accepted
    tokens are draft tokens that became final: never the target's own (bonus or root).
    """

    num_spec_steps: int
    """Rounds in which something was drafted."""
    num_plain_steps: int
    """Rounds in which nothing was: plain decoding. The prompt's own is not recorded."""
    num_draft_tokens: int
    """Draft tokens verified: the nodes of all trees, leaves included."""
    num_accepted_draft_tokens: int
    """Draft tokens that became final."""
    num_spec_tokens: int
    """The largest number of draft tokens on a path that a round was allowed."""
    per_step_accepted: tuple[int, ...]
    """Accepted tokens of each of the newest `MAX_PER_STEP` steps, in order."""
    per_step_drafted: tuple[int, ...]
    """Draft tokens of each of these steps, in order."""
    per_step_depth: tuple[int, ...]
    """Longest drafted path of each of these steps, in order: what could have been accepted."""
    acceptance_histogram: Mapping[int, int]
    """All steps by how many draft tokens they accepted; counts of 0 steps are left out."""
    stop_reasons: Mapping[str, int]
    """Number of draft steps by what ended their drafting."""
    lossless: bool
    """True if the verification used keeps the target's distribution."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Rounds in which no draft answered, by reason; plain steps unless something was copied."""
    num_lookup_tokens: int = 0
    """Draft tokens that no model proposed: copied from the text, or forced."""
    num_accepted_lookup_tokens: int = 0
    """Tokens of `num_lookup_tokens` that became final."""
    num_store_tokens: int = 0
    """Draft tokens that only the n-gram store proposed."""
    num_accepted_store_tokens: int = 0
    """Tokens of `num_store_tokens` that became final."""

    @property
    def mean_acceptance_length(self) -> float:
        """Final tokens per step, the target's own included: 1 + accepted / steps; 1 without any."""
        if not self.num_spec_steps:
            return 1.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens; trees draft alternatives, of which most must fail."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens


class Outcomes:
    """Collects the outcome of every round of a request, in bounded memory."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, int]] = deque(maxlen=MAX_PER_STEP)
        """Accepted and drafted tokens and the longest path of each."""
        self._accepted: Counter[int] = Counter()
        self._num_drafted = 0
        self._stop_reasons: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._num_plain_steps = 0
        self._copied: Counter[CopySource] = Counter()
        self._copied_accepted: Counter[CopySource] = Counter()

    def record(self, round_: Round) -> None:
        """Count a round. Target-initialised roots are the target's own and are not counted."""
        proposal = round_.proposal
        if proposal.fallback is not None:
            self._fallbacks[proposal.fallback] += 1
        if round_.num_nodes == 0:
            self._num_plain_steps += 1
            return
        self._steps.append((round_.num_accepted, round_.num_nodes, round_.depth))
        self._accepted[round_.num_accepted] += 1
        self._num_drafted += round_.num_nodes
        self._stop_reasons[proposal.stopped_by] += 1
        if proposal.sources:
            self._copied.update(proposal.sources)
            self._copied_accepted.update(round_.accepted_sources)

    def summary(self, *, num_spec_tokens: int, lossless: bool) -> SpeculationStats:
        histogram, kept = dict(sorted(self._accepted.items())), self._copied_accepted
        return SpeculationStats(
            num_spec_steps=sum(histogram.values()),
            num_plain_steps=self._num_plain_steps,
            num_draft_tokens=self._num_drafted,
            num_accepted_draft_tokens=sum(num * steps for num, steps in histogram.items()),
            num_spec_tokens=num_spec_tokens,
            per_step_accepted=tuple(accepted for accepted, _, _ in self._steps),
            per_step_drafted=tuple(drafted for _, drafted, _ in self._steps),
            per_step_depth=tuple(depth for _, _, depth in self._steps),
            acceptance_histogram=histogram,
            stop_reasons=dict(self._stop_reasons),
            lossless=lossless,
            fallbacks=dict(self._fallbacks),
            num_lookup_tokens=self._copied[LOOKUP] + self._copied[GRAMMAR],
            num_accepted_lookup_tokens=kept[LOOKUP] + kept[GRAMMAR],
            num_store_tokens=self._copied[STORE],
            num_accepted_store_tokens=kept[STORE],
        )
