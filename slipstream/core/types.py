"""Domain values that cross the two ports. They know nothing of tensors, wires or models."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.core.errors import InvalidRequest, check
from slipstream.core.grammar import Grammar
from slipstream.core.logprobs import MAX_LOGPROBS, TokenLogprob
from slipstream.core.row_costs import Offer
from slipstream.core.tree import EMPTY, Copying, CopySource, TokenTree

MAX_SEED = 2**64 - 1
MAX_LOGIT_BIAS = 1024


class Verification(StrEnum):
    """Rule by which the target decides which draft tokens stay."""

    EXACT = "exact"
    """Gumbel-max keyed by seed and position: the same tokens as plain decoding."""
    MCSD = "mcsd"
    """Recursive rejection sampling, candidates drawn without replacement: the same distribution."""
    MCSD_REPLACEMENT = "mcsd-replacement"
    """Recursive rejection sampling, candidates drawn with replacement: the same distribution."""
    TARGET_INIT = "target-init"
    """Target-initialised roots: NOT lossless, the draft influences which root stays."""

    @property
    def is_lossless(self) -> bool:
        return self is not Verification.TARGET_INIT


class FinishReason(StrEnum):
    """Reason why a request ended."""

    STOP = "stop"
    """An end-of-sequence token, stop token or stop string."""
    LENGTH = "length"
    """The limit on new tokens."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The distribution to sample from. Greedy is `temperature` 0.

    The order of processing is: logit bias, repetition, presence and frequency penalties,
    temperature, then top-k, top-p and min-p, each on what the one before left over.
    Repetition counts prompt and output, presence and frequency count the output only. No token that
    ends the text is drawn before `min_tokens`. Also taken: `top_k` -1 and 0, which are unset,
    `top_p` 0, which is greedy, and negative seeds, which are those of the same 64 bits.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        p, t = (1.0, 0.0) if self.top_p == 0 else (self.top_p, self.temperature)
        k = None if self.top_k in (-1, 0) else self.top_k
        seed = self.seed % 2**64 if -(2**63) <= self.seed < 0 else self.seed
        for name, value in (("temperature", t), ("top_k", k), ("top_p", p), ("seed", seed)):
            object.__setattr__(self, name, value)
        # A divisor has to be a number in float32, too.
        check(t == 0 or 1e-30 <= t <= 100, "temperature", t, "0, or from 1e-30 to 100")
        check(k is None or k >= 1, "top_k", k, "at least 1, or -1, 0 or unset for all tokens")
        check(0 < self.top_p <= 1, "top_p", self.top_p, "between 0 and 1")
        check(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        r = self.repetition_penalty
        check(0.01 <= r <= 100, "repetition_penalty", r, "from 0.01 to 100")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            check(-2 <= value <= 2, name, value, "between -2 and 2")
        self._check_bias()
        check(0 <= self.seed <= MAX_SEED, "seed", self.seed, "between -2**63 and 2**64 - 1")
        check(0 <= self.min_tokens < 2**31, "min_tokens", self.min_tokens, "0 or more")

    def _check_bias(self) -> None:
        size = len(self.logit_bias)
        check(size <= MAX_LOGIT_BIAS, "the length of logit_bias", size, f"up to {MAX_LOGIT_BIAS}")
        if len({token for token, _ in self.logit_bias}) < size:
            raise InvalidRequest("logit_bias names a token twice")
        for token, bias in self.logit_bias:
            check(token >= 0, "a logit_bias token id", token, "0 or more")
            ok = abs(bias) <= 100
            check(ok, f"logit_bias of token {token}", bias, "between -100 and 100")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def depends_on_prefix(self) -> bool:
        """Return whether sampling depends on more of the prefix than the model does."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return self.min_tokens > 0 or penalties != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Session:
    """The running request of a session, sent with every call so that any engine can open it.
    `num_prompt_tokens` counts all before its output, which `max_tokens` bounds."""

    session_id: str
    num_prompt_tokens: int
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    verification: Verification = Verification.EXACT
    stop_token_ids: frozenset[int] = frozenset()
    num_roots: int = 1
    """Target-initialised roots a verdict carries; 1 in every other mode."""
    grammar: Grammar | None = None
    """Grammar that the request's output must follow."""
    num_logprobs: int | None = None
    """Likeliest tokens returned of each position, beside its own; None: no log-probabilities."""
    has_prompt_logprobs: bool = False
    """True to return log probabilities of the prompt, too; it is then computed as a whole."""
    vocab_size: int | None = None
    """Ids that the target has, beyond which a draft proposes none; None: as many as the draft."""

    def __post_init__(self) -> None:
        length, count = self.num_prompt_tokens, self.num_logprobs
        check(length >= 1, "the prompt's length", length, "at least 1 token")
        is_fitting = count is None or 0 <= count <= MAX_LOGPROBS
        check(is_fitting, "logprobs", count, f"0 to {MAX_LOGPROBS}")
        check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        check(self.num_roots >= 1, "num_roots", self.num_roots, "at least 1")


class Shape(StrEnum):
    """The form of a proposed tree."""

    CHAIN = "chain"
    """One path."""
    CAPE = "cape"
    """A chain with runner-up leaves by confidence (GliDe with a CaPE, App. A)."""
    DYNAMIC = "dynamic"
    """EAGLE-2: expand the best paths, then keep the best nodes (EAGLE-2, 4.1 and 4.2)."""
    PRODUCT = "product"
    """Fixed children per depth, `widths` (MCSD's k-config)."""
    FORK = "fork"
    """One chain under each target-initialised root (DynaSD)."""


class StopPolicy(StrEnum):
    """Rule by which drafting ends within a round."""

    FIXED = "fixed"
    SVIP = "svip"
    DECISION = "decision"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one round: how much to draft, and in what shape.

    `max_depth`, 0 in a plain round, bounds the tokens of any path, `max_nodes` those of the tree.
    """

    max_depth: int
    max_nodes: int
    shape: Shape = Shape.CHAIN
    stop: StopPolicy = StopPolicy.FIXED
    threshold: float | None = None
    """Threshold of the stop policy; None takes the policy's default."""
    widths: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()
    """Target-initialised root tokens the tree hangs under, for `fork`."""
    lookup: Copying | None = None
    """Limits of copies beside the draft. No draft sees them: `LookupDraft` acts on them."""
    worth: float | None = None
    """Least probability of a path that makes another draft step pay; None: any."""
    row_prices: tuple[float, ...] = ()
    """Prices of the round's nodes, in tokens, in turn; () where they are free."""
    worth_s: float | None = None
    """Seconds to wait for the proposal, in which plain rounds bring as much; None: as long as it
    takes. No draft sees it."""

    @property
    def draft_depth(self) -> int:
        """Levels that the draft is to add; that of the roots is the target's."""
        return max(self.max_depth - 1, 0) if self.shape is Shape.FORK else self.max_depth

    @property
    def may_ask(self) -> bool:
        """Return whether a draft may be asked: copies alone need none."""
        return self.max_depth > 0 and (self.lookup is None or self.lookup.alone > 0)

    def __post_init__(self) -> None:
        check(self.max_depth >= 0, "max_depth", self.max_depth, "0 or more")
        check(self.max_nodes >= 0, "max_nodes", self.max_nodes, "0 or more")


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """A distribution as the tokens it gives any probability, with those probabilities."""

    tokens: tuple[int, ...]
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NodeStats:
    """Numbers of a node from the softmax of the row that the draft ranked its candidates by.

    That is its logits, for sampled requests in `exact` verification perturbed with the target's
    noise. `top_prob` is the probability of the most likely token of that position, `prob` that of
    the node's own token, `entropy` is in nats, `score` is the decision model's.
    """

    top_prob: float
    prob: float
    entropy: float
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ReplyTiming:
    """Seconds of one reply of an engine elsewhere: of the service, from message to answer, with its
    parts in queue, engine and waiting for keys, and of the caller's serialisation."""

    service_s: float = 0.0
    queue_s: float = 0.0
    engine_s: float = 0.0
    kv_wait_s: float = 0.0
    serialisation_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft's guess: a token tree, statistics per node and, for mcsd, proposal distributions.

    The children of `node` were drawn from `distributions[node + 1]`, in their order in the tree
    (index 0: the children of the root). Empty when candidates are not draws.
    """

    tree: TokenTree = EMPTY
    stats: tuple[NodeStats, ...] = ()
    distributions: tuple[SparseDistribution | None, ...] = ()
    stopped_by: str = "none"
    """Reason for which the drafting ended, one of `round.STOP_REASONS`."""
    fallback: str | None = None
    """Reason why no draft answered, where a plain round stands in for a lost draft."""
    staleness: int | None = None
    """Positions by which the target's keys lagged behind; None for a draft that reads none."""
    timing: ReplyTiming | None = field(default=None, compare=False)
    sources: tuple[CopySource, ...] = ()
    """Sources of the last nodes, which no draft proposed: copied, or forced by a grammar."""

    @property
    def drafted(self) -> TokenTree:
        """The part of the tree that the draft proposed."""
        if not self.sources:
            return self.tree
        count = len(self.tree) - len(self.sources)
        return TokenTree(self.tree.tokens[:count], self.tree.parents[:count])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens that became final in a round: accepted draft tokens, then the target's own.

    `num_accepted` of the `tokens` came from the proposal. `roots` are the target-initialised
    roots of the next position, in `target-init` only. `offer` is what the target has for the next
    round; None: all that is asked for. `num_cached` leading tokens had their keys and values
    cached before the round.
    """

    tokens: tuple[int, ...]
    num_accepted: int
    finish_reason: FinishReason | None = None
    roots: tuple[int, ...] = ()
    offer: Offer | None = None
    num_cached: int = field(default=0, compare=False)
    timing: ReplyTiming | None = field(default=None, compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probability of each token, where requested."""
    forced: tuple[int, ...] = ()
    """Tokens that the session's grammar forces behind the verdict's, as far as they are known."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the prompt's tokens but the first, where requested: at its prefill."""
    proposal: Proposal | None = field(default=None, compare=False)
    """The proposal of a round that was granted; None: that of the call."""
    proposing_s: float = field(default=0.0, compare=False)
    """Seconds that this took, from the verdict before."""
