"""Engines of the methods under test."""

from functools import cached_property
from pathlib import Path

from slipstream.bench.methods import Method
from slipstream.client import Client
from slipstream.client.embedded import Embedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest
from slipstream.drafting.build import Drafter, DraftModel
from slipstream.models.format.digests import weights_digests
from slipstream.models.glide.load import glide_folder


class MethodEngines:
    """The methods of one run over one target, which they share; drafts where they can be."""

    def __init__(
        self, target: str, draft: str, options: EngineOptions, profile: Path | None = None
    ) -> None:
        """`draft` is that of glide and best: glide, a directory of weights or vanilla:MODEL;
        `profile` is a file that takes the place of its own profile."""
        self._target = target
        self._draft = draft
        self._options = options
        self._profile = profile
        self._drafters: dict[str, Drafter] = {}
        self._tuned: dict[str, Drafter] = {}
        self.draft_digests: dict[str, str] = {}
        """SHA-256 of the GliDe weights when they were loaded, by file; empty without any."""

    def load(self, method: Method) -> None:
        """Load the models of a method; raises `ModelError` or `InvalidRequest` where it can't."""
        try:
            with self.client(method).session() as session:
                # Everything about a request is checked when it is made; this one never runs.
                session.stream((0,), max_tokens=1, speculation=method.options)
        except InvalidRequest as error:
            raise type(error)(f"method {method.name!r}: {error}") from None

    @cached_property
    def engine(self) -> Engine:
        """The target, loaded when it is first needed."""
        return Engine.load(self._target, self._options, draft=self._draft)

    def draft_model(self) -> DraftModel:
        """Return the draft for the target, without a profile."""
        return self.engine.draft_model(self._draft)

    def tune(self, method: str, drafter: Drafter) -> None:
        """Give the method of this name a drafter of its own."""
        self._tuned[method] = drafter

    def client(self, method: Method) -> Client:
        return Client.of(Embedded(self.engine, self._drafter(method)))

    def _drafter(self, method: Method) -> Drafter:
        if method.name in self._tuned:
            return self._tuned[method.name]
        # As engines name drafts: a target alone has none.
        names = {"plain": "none", "ngram": "ngram", "vanilla": f"vanilla:{method.model}"}
        name = names.get(method.base, self._draft)
        if name not in self._drafters:
            profile = self._profile if name == self._draft else None
            drafter = self.engine.drafter(name, profile=profile)
            if drafter.kind == "glide":
                self.draft_digests = weights_digests(
                    glide_folder(self._draft, self.engine.model_id)
                )
            self._drafters[name] = drafter
        return self._drafters[name]
