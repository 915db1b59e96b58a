"""A target and a draft in this process, built from names. The place where models meet the loop."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from slipstream.core.errors import InvalidRequest
from slipstream.core.ngram import NgramDraft
from slipstream.core.planner import Profile
from slipstream.core.ports import Draft
from slipstream.core.types import Shape, StopPolicy
from slipstream.draft.engine import Feed, LocalDraft
from slipstream.models.causal import CausalModel, Numerics
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.decision import load_decision
from slipstream.models.glide_scorer import load_glide
from slipstream.models.glide_target import TargetParts, target_parts
from slipstream.models.loading import LoadedModel, load_target_parts, require_same_tokenizer
from slipstream.target.engine import LocalTarget

DrafterKind = Literal["glide", "vanilla", "ngram", "none"]

SHIPPED = Path(__file__).parent.parent / "models" / "weights"
FREE_ROWS = 32
"""Rows that a CPU verifies at little more than the cost of one."""

_VANILLA = "vanilla:"
# Measured with the shipped pair on two CPU cores: a draft step takes 4% of a plain round and a row
# to verify 1 to 2%; one more step brings a row and its leaves, hence the threshold.
_PROFILES: Mapping[str, Profile] = {
    "glide": Profile(
        stop=StopPolicy.COST, threshold=0.1, max_nodes=15, step_cost=0.045, row_cost=0.03
    ),
    "vanilla": Profile(shape=Shape.CHAIN, step_cost=0.5, max_depth=5),
    "ngram": Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8),
}


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft behind its port, with what a request may ask of it."""

    kind: DrafterKind
    draft: Draft
    profile: Profile
    has_decision_model: bool = False
    max_lag: int | None = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the models of an embedded engine are loaded and run."""

    dtype: str = "bfloat16"
    numerics: Numerics = "invariant"
    threads: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.numerics not in ("invariant", "fast"):
            raise InvalidRequest(f"numerics is {self.numerics!r}, but must be invariant or fast")
        if self.threads is not None and self.threads < 1:
            raise InvalidRequest(f"threads is {self.threads}, but must be at least 1")


class Engine:
    """One target and any number of drafts for it."""

    def __init__(self, loaded: LoadedModel, options: EngineOptions) -> None:
        self.options = options
        self.model_id = loaded.model_id
        self.tokenizer: Any = loaded.tokenizer
        self.stop_token_ids = _stop_token_ids(loaded)
        self._loaded = loaded
        self.parts = _parts(loaded)
        self.model = CausalModel(loaded.model, numerics=options.numerics)
        self.target = LocalTarget(self.model, free_rows=FREE_ROWS)

    @classmethod
    def load(cls, target: str, options: EngineOptions) -> "Engine":
        """Load the target by alias, path or hub id."""
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        loaded = load_target_parts(target, dtype=options.dtype, device=options.device)
        return cls(loaded, options)

    def drafter(self, name: str) -> Drafter:
        """A draft by name: glide, ngram, none, vanilla:MODEL or a directory of GliDe weights."""
        if name == "none":
            return Drafter("none", NgramDraft(), Profile())
        if name == "ngram":
            return Drafter("ngram", NgramDraft(), _PROFILES["ngram"])
        if name.startswith(_VANILLA):
            return self._vanilla(name.removeprefix(_VANILLA))
        if name == "glide":
            return self._glide(self._shipped())
        if not name or not Path(name).expanduser().is_dir():
            raise InvalidRequest(
                f"the draft is {name!r}, but must be glide, ngram, none, vanilla:MODEL or a"
                " directory of GliDe weights"
            )
        return self._glide(Path(name).expanduser())

    def _shipped(self) -> Path:
        folder = SHIPPED / f"{self.model_id}-glide"
        if not folder.is_dir():
            raise InvalidRequest(
                f"no GliDe weights are shipped for {self.model_id}; train some with"
                " `slipstream train glide` and name their directory, or draft with ngram"
            )
        return folder

    def _glide(self, folder: Path) -> Drafter:
        if self.parts is None:
            raise InvalidRequest(f"{self.model_id} has no rotary positions, which GliDe needs")
        scorer = load_glide(folder, self.parts)
        layers = tuple(scorer.config.target_layers)
        weights = folder / "decision.safetensors"
        size = scorer.hidden_size
        decision = load_decision(weights, hidden_size=size) if weights.exists() else None
        profile = _PROFILES["glide"]
        if scorer.max_lag is not None and scorer.max_lag < profile.max_depth:
            profile = replace(profile, max_depth=scorer.max_lag)
        score = None if decision is None else decision.score
        draft = LocalDraft(scorer, Feed(self.target, layers), decision=score, profile=profile)
        return Drafter("glide", draft, profile, decision is not None, scorer.max_lag)

    def _vanilla(self, name: str) -> Drafter:
        if not name:
            raise InvalidRequest("a vanilla draft needs a model, as in vanilla:smollm2-135m")
        dtype, device = self.options.dtype, self.options.device
        loaded = load_target_parts(name, dtype=dtype, device=device)
        require_same_tokenizer(self._loaded, loaded)
        profile = _PROFILES["vanilla"]
        # A draft may be wrong in the last bit, so its numerics are always the fast ones.
        scorer = CausalScorer(CausalModel(loaded.model, numerics="fast"))
        return Drafter("vanilla", LocalDraft(scorer, profile=profile), profile)


def _parts(loaded: LoadedModel) -> TargetParts | None:
    if not hasattr(loaded.model.get_decoder(), "rotary_emb"):
        return None
    return target_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)


def _stop_token_ids(loaded: LoadedModel) -> frozenset[int]:
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
