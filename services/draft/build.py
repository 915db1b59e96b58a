"""A draft by name, for one target. Knows what is shipped; not who asks or where the target is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.core.ngram import NGRAM, NgramDraft
from slipstream.core.planner import Profile
from slipstream.core.ports import Draft
from slipstream.core.request import NO_DRAFTER, DraftFacts
from slipstream.core.types import Shape, StopPolicy
from slipstream.draft.engine import Feed, KvSource, LocalDraft
from slipstream.models.causal import CausalModel
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.decision import load_decision
from slipstream.models.glide_scorer import load_glide
from slipstream.models.glide_target import TargetParts
from slipstream.models.loading import load_target_parts, require_same_tokenizer

SHIPPED = Path(__file__).parent.parent / "models" / "weights"

VANILLA = "vanilla:"
# Measured with the shipped pair on two CPU cores: a draft step takes 4% of a plain round and a row
# to verify 1 to 2%; one more step brings a row and its leaves, hence the threshold.
_PROFILES: Mapping[str, Profile] = {
    "glide": Profile(
        stop=StopPolicy.COST, threshold=0.1, max_nodes=15, step_cost=0.045, row_cost=0.03, lookup=1
    ),
    "vanilla": Profile(shape=Shape.CHAIN, step_cost=0.5, max_depth=5),
}


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The target that a draft is for, as far as the draft needs it.

    `parts` are what GliDe shares with it, None where they are not at hand; `source` is where its
    keys and values are read; `tokenizer_hash` None skips the check of a plain draft's tokenizer;
    `context_length` None says that the target checks lengths.
    """

    model_id: str
    tokenizer_hash: str | None
    parts: TargetParts | None
    source: KvSource
    dtype: str = "bfloat16"
    device: str = "cpu"
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft behind its port, and what it says of itself.

    `layers` are the target layers whose keys and values it reads; `tokenizer_hash` and
    `vocab_size` are its own where it is a model; `context_length` is what it can take, None for
    anything that the target can.
    """

    draft: Draft
    facts: DraftFacts
    layers: tuple[int, ...] = ()
    tokenizer_hash: str | None = None
    vocab_size: int | None = None
    context_length: int | None = None

    @property
    def kind(self) -> str:
        """glide, vanilla, ngram or none."""
        return self.facts.kind


def build_drafter(name: str, target: DraftTarget) -> Drafter:
    """A draft by name: glide, ngram, none, vanilla:MODEL or a directory of GliDe weights."""
    if name == NO_DRAFTER:
        return Drafter(NgramDraft(), DraftFacts(NO_DRAFTER))
    if name == "ngram":
        return Drafter(NgramDraft(), NGRAM)
    if name.startswith(VANILLA):
        return _vanilla(name.removeprefix(VANILLA), target)
    return _glide(glide_folder(name, target.model_id), target)


def glide_folder(name: str, model_id: str) -> Path:
    """The directory of GliDe weights that `name` stands for. Raises `InvalidRequest`."""
    if name == "glide":
        return _shipped(model_id)
    if not name or not Path(name).expanduser().is_dir():
        raise InvalidRequest(
            f"the draft is {name!r}, but must be glide, ngram, none, vanilla:MODEL or a"
            " directory of GliDe weights"
        )
    return Path(name).expanduser()


def _shipped(model_id: str) -> Path:
    folder = SHIPPED / f"{model_id}-glide"
    if not folder.is_dir():
        raise InvalidRequest(
            f"no GliDe weights are shipped for {model_id}; train some with"
            " `slipstream train glide` and name their directory, or draft with ngram"
        )
    return folder


def _glide(folder: Path, target: DraftTarget) -> Drafter:
    if target.parts is None:
        raise InvalidRequest(f"{target.model_id} has no rotary positions, which GliDe needs")
    scorer = load_glide(folder, target.parts)
    layers = tuple(scorer.config.target_layers)
    decision = load_decision(folder, hidden_size=scorer.hidden_size)
    profile = _PROFILES["glide"]
    if scorer.max_lag is not None and scorer.max_lag < profile.max_depth:
        profile = replace(profile, max_depth=scorer.max_lag)
    score = None if decision is None else decision.score
    feed = Feed(target.source, layers) if layers else None
    draft = LocalDraft(scorer, feed, decision=score, profile=profile)
    facts = DraftFacts("glide", profile, decision is not None, scorer.max_lag)
    config = scorer.config
    return Drafter(
        draft, facts, layers, config.tokenizer_hash, config.vocab_size, target.context_length
    )


def _vanilla(name: str, target: DraftTarget) -> Drafter:
    if not name:
        raise InvalidRequest("a vanilla draft needs a model, as in vanilla:smollm2-135m")
    loaded = load_target_parts(name, dtype=target.dtype, device=target.device)
    require_same_tokenizer(target, loaded)
    profile = _PROFILES["vanilla"]
    # A draft may be wrong in the last bit, so its numerics are always the fast ones.
    model = CausalModel(loaded.model, numerics="fast")
    draft = LocalDraft(CausalScorer(model), profile=profile)
    facts = DraftFacts("vanilla", profile)
    return Drafter(draft, facts, (), loaded.tokenizer_hash, model.vocab_size, model.context_length)
