"""A draft by name, for one target: n-grams, GliDe weights, an EAGLE-3 head, any causal model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.core.draft.ngram import NgramStore
from slipstream.core.draft.ngram_draft import NgramDraft
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import EAGLE, VANILLA
from slipstream.core.policy.profile import NGRAM, DraftFacts, Profile
from slipstream.core.ports import Draft
from slipstream.core.request.request import NO_DRAFTER
from slipstream.core.types import Shape, StopPolicy
from slipstream.drafting.checks import MAX_TOKENS
from slipstream.drafting.engine import NUM_PAGES, KvSource, LocalDraft, TargetKv
from slipstream.drafting.profile_file import PROFILE_NAME, ModelPair, read_profile
from slipstream.drafting.reader import Score
from slipstream.drafting.trial import step_seconds
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.decision import DECISION_NAME, DecisionModel, load_decision
from slipstream.models.dtypes import FP8
from slipstream.models.eagle.eagle_weights import read_eagle
from slipstream.models.format.digests import weights_digest
from slipstream.models.format.resolve import resolve_head
from slipstream.models.glide.glide_config import WEIGHTS_NAME, GlideConfig
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.load import draft_scorer, glide_chains, glide_folder, load_glide
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.loaded import require_same_numbering
from slipstream.models.loading import causal_model, load_model
from slipstream.models.memory import DraftMemory, MemoryPlan
from slipstream.models.scorer import Scorer
from slipstream.ngrams.store_file import NgramStores
from slipstream.text.tokenizer import TextTokenizer

_ROWS = 256
"""Tokens of the pass whose workspace is accounted."""
# For drafts without a calibration: an entropy bound and the paper's leaves need no measurement.
_UNTUNED: Mapping[str, Profile] = {
    "glide": Profile(max_nodes=15, lookup=1),
    "eagle3": Profile(max_nodes=15, lookup=1),
    "vanilla": Profile(shape=Shape.CHAIN, max_depth=5),
}


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The target that a draft is for, as far as the draft needs it.

    `parts` are shared with GliDe, None for other drafts; `source` has its keys and values;
    `text` None skips the check of a plain draft's tokenizer; `context_length` None means
    that the target checks lengths; `memory` limits keys and values; `store` is that of n-grams.
    """

    model_id: str
    text: TextTokenizer | None
    parts: TargetParts | None
    source: KvSource
    dtype: str = "auto"
    device: str = "cpu"
    context_length: int | None = None
    memory: DraftMemory = field(default_factory=DraftMemory)
    store: NgramStore | None = None


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft and the facts of it.

    `layers` are the numbers of the target's layers that it reads; `tokenizer_hash`, `vocab_size`,
    `memory` and `dtype` are those of its model, if it has one; `context_length` is the length of
    the longest session, None for any.
    """

    draft: Draft
    facts: DraftFacts
    layers: tuple[int, ...] = ()
    tokenizer_hash: str | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    memory: MemoryPlan | None = None
    dtype: str = ""
    numbering: bytes = b""
    """Digests of a plain draft's token ids: see `same_numbering`."""
    stores: NgramStores | None = None
    """Stores that n-grams are looked up in, by the tokenizer of each session's target."""

    @property
    def kind(self) -> str:
        """glide, eagle3, vanilla, ngram or none."""
        return self.facts.kind


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model in memory, without a profile.

    Its profiles must be for `pair`; `folder` has weights of GliDe or a head, and their own profile
    if there is one; `memory` None is a small one; `engine` is the name of the kernels. The rest is
    as in `Drafter`.
    """

    kind: str
    scorer: Scorer
    pair: ModelPair
    source: KvSource
    decision: DecisionModel | None = None
    layers: tuple[int, ...] = ()
    folder: Path | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    memory: MemoryPlan | None = None
    engine: str = "torch"
    numbering: bytes = b""

    @property
    def score(self) -> Score | None:
        """Return what scores positions, if there is a decision model."""
        return None if self.decision is None else self.decision.score

    def default_profile(self) -> Profile:
        """Return the profile beside the weights, or else the untuned one.

        Raises what `read_profile` does.
        """
        if self.folder is not None and (path := self.folder / PROFILE_NAME).is_file():
            # Costs in it are those of the machine that it was made on.
            return replace(read_profile(path, self.pair), step_cost=None, row_cost=None)
        return self.untuned_profile()

    def untuned_profile(self) -> Profile:
        """Return a profile for any weights of its kind, within the lag that it was trained for."""
        profile, lag = _UNTUNED[self.kind], self.scorer.max_lag
        return profile if lag is None else replace(profile, max_depth=min(profile.max_depth, lag))

    def draft(self, profile: Profile, *, source: KvSource | None = None) -> LocalDraft:
        """Return an engine over it, with memory of its own, which reads keys and values of
        `source`, by default the model's own source."""
        target_kv = TargetKv(source or self.source, self.layers) if self.layers else None
        pool = None if self.memory is None else self.scorer.pool(self.memory.num_pages)
        chains = None
        if isinstance(self.scorer, GlideScorer):
            num_pages = NUM_PAGES if self.memory is None else self.memory.num_pages
            length = min(self.context_length or MAX_TOKENS, num_pages * BLOCK_SIZE)
            chains = glide_chains(self.scorer, length, self.decision, profile)
        return LocalDraft(
            self.scorer, target_kv, decision=self.score, profile=profile, pool=pool, chains=chains
        )

    def drafter(self, profile: Profile | None = None) -> Drafter:
        """Return a drafter with a profile, by default its own.

        Raises `InvalidRequest` for one it can't follow.
        """
        profile = profile or self.default_profile()
        lag = self.scorer.max_lag
        if lag is not None and profile.max_depth > lag:
            raise InvalidRequest(
                f"a profile's max_depth is {profile.max_depth}, but the draft was trained for paths"
                f" of at most {lag}"
            )
        if profile.stop is StopPolicy.DECISION and self.decision is None:
            raise InvalidRequest(
                "a profile's stop is decision, but the draft has no decision model"
            )
        draft = self.draft(profile)
        draft.prepare()
        step_s = step_seconds(self.scorer, self.layers, draft.chains, name=self._identity())
        facts = DraftFacts(self.kind, profile, self.decision is not None, lag, step_s)
        return Drafter(
            draft,
            facts,
            self.layers,
            self.pair.tokenizer_hash,
            self.vocab_size,
            self.context_length,
            self.memory,
            self.scorer.layout.dtype.name,
            self.numbering,
        )

    def _identity(self) -> str:
        weights = " ".join(digest[:12] for digest in self.pair.weights_sha256.values())
        size = 0 if self.memory is None else self.memory.weight_bytes
        return f"{self.pair.draft} {weights} {size} {self.scorer.layout.dtype.name} {self.engine}"


def build_drafter(name: str, target: DraftTarget, *, profile: Path | None = None) -> Drafter:
    """Build a draft by name: ngram, none, or a model of `load_draft_model`.

    `profile` is a profile file that takes the place of the draft's own.
    """
    if name in (NO_DRAFTER, NGRAM.kind):
        if profile is not None:
            raise InvalidRequest(f"the draft is {name}, which takes no profile")
        facts = DraftFacts(NO_DRAFTER) if name == NO_DRAFTER else NGRAM
        return Drafter(NgramDraft(target.store), facts)
    model = load_draft_model(name, target)
    return model.drafter(None if profile is None else read_profile(profile, model.pair))


def load_draft_model(name: str, target: DraftTarget) -> DraftModel:
    """Load the model of a draft by name: glide, vanilla:MODEL, eagle3:HEAD or a directory of GliDe
    weights."""
    if name.startswith(VANILLA):
        return _vanilla(name, target)
    if name.startswith(EAGLE):
        return _eagle(resolve_head(name.removeprefix(EAGLE)), target)
    return _glide(glide_folder(name, target.model_id), target)


def _glide(folder: Path, target: DraftTarget) -> DraftModel:
    scorer = load_glide(folder, _parts(target), is_scaled=target.dtype == FP8)
    assert isinstance(scorer.config, GlideConfig), "GliDe weights have a config of their own"
    pair = ModelPair(target.model_id, "glide", scorer.config.tokenizer_hash)
    return _reading("glide", scorer, folder, folder / WEIGHTS_NAME, target, pair)


def _eagle(folder: Path, target: DraftTarget) -> DraftModel:
    parts = _parts(target)
    weights = read_eagle(folder, parts.num_layers)
    scorer = draft_scorer(weights, parts, is_scaled=target.dtype == FP8)
    # Heads name no tokenizer: sizes alone tell that they are for this target.
    pair = ModelPair(target.model_id, EAGLE + folder.name, parts.tokenizer_hash or "")
    return _reading("eagle3", scorer, folder, folder, target, pair)


def _parts(target: DraftTarget) -> TargetParts:
    if target.parts is None:
        needed = "rotary positions, which GliDe and EAGLE-3 need"
        raise InvalidRequest(f"{target.model_id} has no {needed}")
    return target.parts


def _reading(
    kind: str,
    scorer: GlideScorer,
    folder: Path,
    weights: Path,
    target: DraftTarget,
    pair: ModelPair,
) -> DraftModel:
    """Return a draft that reads its target; `weights` are the file or directory of its own."""
    decision = load_decision(folder, hidden_size=scorer.hidden_size)
    files = [weights, *([] if decision is None else [folder / DECISION_NAME])]
    memory = target.memory.plan(
        scorer.layout,
        weight_bytes=scorer.weight_bytes,
        workspace_bytes=scorer.workspace_bytes(_ROWS),
        max_tokens=target.context_length or MAX_TOKENS,
        mirrored=scorer.mirrored,
    )
    digests = {file.name: weights_digest(file) for file in files}
    return DraftModel(
        kind=kind,
        scorer=scorer,
        pair=replace(pair, weights_sha256=digests),
        source=target.source,
        decision=decision,
        layers=scorer.layers,
        folder=folder,
        vocab_size=scorer.config.vocab_size,
        context_length=target.context_length,
        memory=memory,
        engine=scorer.engine,
    )


def _vanilla(name: str, target: DraftTarget) -> DraftModel:
    model_id = name.removeprefix(VANILLA)
    if not model_id:
        raise InvalidRequest("a vanilla draft needs a model, as in vanilla:smollm2-135m")
    loaded = load_model(model_id, dtype=target.dtype, device=target.device)
    if target.text is not None:
        require_same_numbering(target.model_id, target.text, loaded)
    # A draft may be wrong in the last bit, so its numerics are always the fast ones.
    model = causal_model(loaded.model, numerics="fast", path=loaded.path)
    memory = target.memory.plan(
        model.layout,
        weight_bytes=model.weight_bytes,
        workspace_bytes=model.workspace_bytes(_ROWS),
        max_tokens=model.context_length,
    )
    return DraftModel(
        kind="vanilla",
        # Heads are padded to sizes of their own: the tokens of the text are what both have.
        scorer=CausalScorer(model, vocab_size=loaded.num_token_ids),
        pair=ModelPair(target.model_id, VANILLA + loaded.model_id, loaded.tokenizer_hash),
        source=target.source,
        vocab_size=model.vocab_size,
        memory=memory,
        engine=model.engine,
        numbering=loaded.tokenizer.table.numbering,
    )
