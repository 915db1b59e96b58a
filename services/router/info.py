"""Descriptions of a router's models: what requests can ask, and what they can't."""

from collections.abc import Sequence
from dataclasses import replace

from slipstream.core.draft.ngram_draft import NGRAM
from slipstream.core.request.model_info import (
    DrafterInfo,
    Limits,
    ModelInfo,
    drafter_info,
    drafter_infos,
    verification_infos,
)
from slipstream.router.replicas.fleet import ChosenTarget, Fleet
from slipstream.router.replicas.probes import DescribedDraft


def model_info(fleet: Fleet, placed: ChosenTarget) -> ModelInfo:
    """One model and what it can be asked for. Drafts that are lost for the moment count."""
    model, description = placed.model, placed.model.description
    drafters = _drafters(fleet.drafts_for(placed))
    return ModelInfo(
        model=model.name,
        vocab_size=model.facts.vocab_size,
        tokenizer_hash=model.tokenizer_hash,
        stop_token_ids=tuple(sorted(model.facts.stop_token_ids)),
        has_chat_template=bool(model.tokenizer.chat_template),
        numerics=description.numerics,
        dtype=description.dtype,
        limits=Limits.of(model.facts),
        verifications=verification_infos({drafter.kind for drafter in drafters}),
        drafters=drafters,
        num_targets=fleet.num_targets(model.name),
    )


def _drafters(drafts: Sequence[tuple[DescribedDraft, bool]]) -> tuple[DrafterInfo, ...]:
    """One row per kind, counting those that are ready; n-gram lookup is the router's own."""
    elsewhere = [(model, is_ready) for model, is_ready in drafts if model.name != NGRAM.kind]
    rows = drafter_infos([model.facts for model, _ in elsewhere])
    ready = [model.name for model, is_ready in elsewhere if is_ready]
    counted = [replace(row, num_replicas=ready.count(row.kind)) for row in rows]
    return tuple(sorted([*counted, drafter_info(NGRAM)], key=lambda row: row.kind))
