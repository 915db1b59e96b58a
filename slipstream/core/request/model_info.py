"""Abilities and limits of a model, from the tables that requests are checked with."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.grammar import MAX_GRAMMAR_BYTES
from slipstream.core.policy.options import DRAFTERS, VERIFICATIONS
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.core.request.request import NO_DRAFTER, ModelFacts
from slipstream.core.text import MAX_STOP_BYTES, MAX_STOP_STRINGS
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import MAX_LOGIT_BIAS, Shape, StopPolicy, Verification


@dataclass(frozen=True, slots=True)
class VerificationInfo:
    """Shapes, stop policies and drafters that go with a verification mode here."""

    verification: Verification
    shapes: tuple[Shape, ...]
    drafters: tuple[str, ...]
    lossless: bool
    """True if the mode keeps the target's distribution."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """Shapes, stop policies and verification modes that go with a drafter."""

    kind: str
    shapes: tuple[Shape, ...]
    stops: tuple[StopPolicy, ...]
    max_draft_tokens: int | None = None
    """Longest path it can be asked for; None for no limit of its own."""
    num_replicas: int = 1
    lookup: bool = False
    """Permission to copy text beside its proposals, in exact verification."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a request."""

    context_length: int
    """Prompt and output together."""
    max_stop_strings: int = MAX_STOP_STRINGS
    max_stop_bytes: int = MAX_STOP_BYTES
    max_draft_tokens: int = MAX_DRAFT_TOKENS
    max_nodes: int = MAX_NODES
    max_logit_bias: int = MAX_LOGIT_BIAS
    max_logprobs: int | None = None
    """Likeliest tokens that logprobs can tell of a position; None where there are none."""
    max_grammar_bytes: int = 0
    """Largest JSON schema or regular expression; 0 where the output can't follow any."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model and what it can be asked for."""

    model: str
    vocab_size: int
    tokenizer_hash: str
    """SHA-256 of the numbering of tokens: equal where ids mean the same."""
    stop_token_ids: tuple[int, ...]
    has_chat_template: bool
    """True if the model has a chat template; without one, prompts are raw text or token ids."""
    numerics: str
    """invariant or fast."""
    dtype: str
    limits: Limits
    verifications: tuple[VerificationInfo, ...] = field(default=())
    drafters: tuple[DrafterInfo, ...] = field(default=())
    num_targets: int = 1
    sampling_defaults: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Sampling parameters of its generation_config.json, which `model_defaults` of a request names;
    over HTTP, all that a body leaves out."""

    @classmethod
    def of(cls, facts: ModelFacts, drafters: tuple[DrafterInfo, ...], **own: Any) -> "ModelInfo":
        """Return the description of a target with these facts; `own` are its other fields."""
        size = MAX_GRAMMAR_BYTES if facts.has_grammars else 0
        return cls(
            vocab_size=facts.vocab_size,
            stop_token_ids=tuple(sorted(facts.stop_token_ids)),
            limits=Limits(
                facts.context_length, max_logprobs=facts.max_logprobs, max_grammar_bytes=size
            ),
            verifications=verification_infos({drafter.kind for drafter in drafters}),
            drafters=drafters,
            sampling_defaults=facts.sampling_defaults,
            **own,
        )


def drafter_infos(drafts: Sequence[DraftFacts]) -> tuple[DrafterInfo, ...]:
    """One row per kind: what every replica of it can do, and how many there are."""
    infos = []
    for kind in sorted({draft.kind for draft in drafts} - {NO_DRAFTER}):
        own = [draft for draft in drafts if draft.kind == kind]
        row, lags = DRAFTERS[kind], [draft.max_lag for draft in own if draft.max_lag is not None]
        decides = all(draft.has_decision_model for draft in own)
        stops = row.stops if decides else row.stops - {StopPolicy.DECISION}
        shapes = tuple(shape for shape in Shape if shape in row.shapes)
        ends = tuple(stop for stop in StopPolicy if stop in stops)
        lag = min(lags, default=None)
        infos.append(DrafterInfo(kind, shapes, ends, lag, len(own), row.extras))
    return tuple(infos)


def verification_infos(kinds: Set[str]) -> tuple[VerificationInfo, ...]:
    """The modes that some drafter of these kinds goes with; without any, plain decoding's."""
    infos = []
    for verification, row in VERIFICATIONS.items():
        drafters = tuple(sorted(row.drafters & kinds))
        drawn = {shape for kind in drafters for shape in DRAFTERS[kind].shapes & row.shapes}
        if drafters or verification is Verification.EXACT:
            shapes = tuple(shape for shape in Shape if shape in drawn)
            infos.append(
                VerificationInfo(verification, shapes, drafters, verification.is_lossless, row.note)
            )
    return tuple(infos)
