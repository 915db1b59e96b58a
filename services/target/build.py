"""The target's engine out of a loaded model, with what it says of itself."""

from dataclasses import dataclass

from slipstream.core.request import ModelFacts
from slipstream.models.causal import CausalModel, Numerics
from slipstream.models.loading import LoadedModel
from slipstream.target.engine import LocalTarget

FREE_ROWS = 32
"""Rows that a CPU verifies at little more than the cost of one."""


@dataclass(frozen=True, slots=True)
class BuiltTarget:
    """An engine, the model it runs, and the facts that requests are checked against."""

    target: LocalTarget
    model: CausalModel
    facts: ModelFacts


def build_target(
    loaded: LoadedModel, *, numerics: Numerics = "invariant", max_sessions: int = 64
) -> BuiltTarget:
    """Take the loaded model over; it is of no use to anybody else afterwards."""
    model = CausalModel(loaded.model, numerics=numerics)
    target = LocalTarget(model, free_rows=FREE_ROWS, max_sessions=max_sessions)
    facts = ModelFacts(
        loaded.model_id, model.vocab_size, model.context_length, stop_token_ids(loaded)
    )
    return BuiltTarget(target, model, facts)


def stop_token_ids(loaded: LoadedModel) -> frozenset[int]:
    """End-of-sequence ids by the generation config, the config and the tokenizer."""
    named = [
        getattr(loaded.model.generation_config, "eos_token_id", None),
        loaded.model.config.get_text_config().eos_token_id,
        loaded.tokenizer.eos_token_id,
    ]
    ids: set[int] = set()
    for value in named:
        ids.update(value if isinstance(value, (list, tuple)) else [value])
    return frozenset(token for token in ids if token is not None)
