"""A target and a draft in this process, built from names."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import ModelMismatch, check
from slipstream.core.request.model_info import ModelInfo, drafter_infos
from slipstream.core.request.request import ModelFacts
from slipstream.drafting.build import (
    Drafter,
    DraftModel,
    DraftTarget,
    build_drafter,
    load_draft_model,
)
from slipstream.drafting.kv_mirror import KvMirror
from slipstream.models.decoder import check_numerics
from slipstream.models.dtypes import CPU
from slipstream.models.eagle.eagle_weights import head_layers
from slipstream.models.glide.load import target_parts
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.kv.cache import view_layout
from slipstream.models.loaded import LoadedModel
from slipstream.models.loading import load_model
from slipstream.models.memory import AUTO, DraftMemory, check_budget
from slipstream.models.scorer import WINDOW, KvView, skippable, usual_window
from slipstream.models.threads import set_num_threads
from slipstream.ngrams.store_file import AUTO as AUTO_NGRAMS
from slipstream.ngrams.store_file import store_named
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.build import TargetLimits, build_target
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.kv_sender import KvSender


class WindowedKv:
    """`draft.engine.KvSource` of a target in this process: its own cache, and of a long text a copy
    of the first and the newest positions."""

    def __init__(self, target: LocalTarget, *, window: int = WINDOW) -> None:
        self._target = target
        self._window = window
        self._copies: dict[str, tuple[KvSender, KvMirror]] = {}

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `draft.engine.KvSource.view`. On the engines' thread."""
        skipped = skippable(self._target.kv_count(session_id), self._window)
        sender, mirror = self._copies.get(session_id, (None, None))
        if sender is None or mirror is None or sender.is_closed or mirror.skipped not in skipped:
            if not skipped[-1]:
                return self._target.view(session_id, layers)
            sender, mirror = self._begin(session_id, layers, skipped[-1])
        while piece := sender.take(self._window):
            mirror.write(piece.start, piece.layers)
        return mirror.view()

    def _begin(
        self, session_id: str, layers: Sequence[int], num_skipped: int
    ) -> tuple[KvSender, KvMirror]:
        layout = view_layout(self._target.layout, layers)
        mirror = KvMirror(layers, layout, limit=sys.maxsize)
        mirror.free(skipped=num_skipped)
        sender = self._target.kv_sender(session_id, layers, 0, mirror.gap)
        self._copies = {key: own for key, own in self._copies.items() if not own[0].is_closed}
        self._copies[session_id] = sender, mirror
        return sender, mirror


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of loading and running the models of embedded engines."""

    dtype: str = "auto"
    numerics: str = "auto"
    threads: int | None = None
    device: str = "cpu"
    kv_memory: str = AUTO
    max_cached_bytes: int | None = None
    """Part of that kept for prompts that begin alike; None is all of it."""
    ngrams: str = AUTO_NGRAMS
    """The n-gram store: auto is the package's for the tokenizer, none is none, else a file."""

    def __post_init__(self) -> None:
        check_numerics(self.numerics)
        check(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1")
        check_budget(self.kv_memory)


class Engine:
    """One target and any number of drafts for it."""

    def __init__(self, loaded: LoadedModel, options: EngineOptions, *, draft: str = "") -> None:
        """The target keeps what a `draft` by name reads of it."""
        self.options = options
        self.model_id = loaded.model_id
        self.tokenizer_hash = loaded.tokenizer_hash
        self.text: TextTokenizer = loaded.tokenizer
        self.parts: TargetParts | None = None
        with suppress(ModelMismatch):
            self.parts = target_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)
        limits = TargetLimits(
            kv_memory=options.kv_memory,
            max_cached_bytes=options.max_cached_bytes,
            hidden_layers=head_layers(draft, self.parts.num_layers) if self.parts else (),
        )
        built = build_target(loaded, numerics=options.numerics, limits=limits)
        self.model, self.target, self.budget = built.model, built.target, built.budget
        self.dtype = self.model.dtype.name
        self.facts: ModelFacts = built.facts
        store = store_named(options.ngrams, loaded.tokenizer_hash, vocab_size=self.facts.vocab_size)
        self.store = store

    @classmethod
    def load(cls, target: str, options: EngineOptions, *, draft: str = "") -> "Engine":
        """Load the target by alias, path or hub id, for a draft by name."""
        if options.threads is not None:
            set_num_threads(options.threads)
        loaded = load_model(target, dtype=options.dtype, device=options.device)
        return cls(loaded, options, draft=draft)

    def drafter(self, name: str, *, profile: Path | None = None) -> Drafter:
        """A draft by name: see `build_drafter`.

        `profile` is a file that takes the place of the draft's own profile.
        """
        return build_drafter(name, self._for_draft(name), profile=profile)

    def info(self, drafter: Drafter) -> ModelInfo:
        return ModelInfo.of(
            self.facts,
            drafter_infos([drafter.facts]),
            model=self.model_id,
            tokenizer_hash=self.tokenizer_hash,
            has_chat_template=bool(self.text.chat_template),
            numerics=self.model.numerics,
            dtype=self.model.weights_type,
        )

    def draft_model(self, name: str) -> DraftModel:
        """The model behind such a draft, if it is one, without a profile."""
        return load_draft_model(name, self._for_draft(name))

    def _for_draft(self, name: str) -> DraftTarget:
        options = self.options
        window = usual_window(name)
        return DraftTarget(
            self.model_id,
            self.text,
            self.parts,
            WindowedKv(self.target, window=window) if options.device == CPU else self.target,
            AUTO if options.dtype == AUTO else self.dtype,
            options.device,
            self.facts.context_length,
            DraftMemory() if options.kv_memory == AUTO else DraftMemory(options.kv_memory),
            self.store,
        )
