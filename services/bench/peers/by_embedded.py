"""Slipstream's engines in a seat: for one request at a time, or for several that share steps.

Nothing is kept for prompts that begin alike: arms that share an engine get the same prompts.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import slipstream
from slipstream.bench.contenders import Contenders, draft_name
from slipstream.bench.figures import Reply
from slipstream.bench.methods import Method, parse_method
from slipstream.bench.peers.wire import Answer, Facts, Prompts, Settings
from slipstream.client import AsyncClient
from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.options import SpeculationOptions
from slipstream.core.results import Result
from slipstream.core.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.engine.thread import EngineThread


class EmbeddedAnswers:
    """Methods of `bench speed`, a request at a time."""

    def __init__(self, settings: Settings) -> None:
        self._methods = methods_of(settings)
        self._threads: int = settings["threads"]
        self._contenders = Contenders(
            settings["target"],
            settings["draft"],
            engine_options(settings),
            sampling=SamplingParams(),
            profile=profile_of(settings),
        )
        self._contenders.engine(settings["numerics"])

    def load(self, arm: str) -> None:
        """See `Answerer`."""
        self._contenders.load(self._methods[arm])

    def answer(self, arm: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """See `Answerer`; one after the other."""
        return [self._one(arm, prompt, max_new_tokens) for prompt in prompts]

    def facts(self) -> Facts:
        """See `Answerer`."""
        return own_facts(self._threads)

    def close(self) -> None:
        """See `Answerer`."""

    def _one(self, arm: str, prompt: Any, max_new_tokens: int) -> Answer:
        talk = self._contenders.talk(self._methods[arm])
        try:
            reply: Reply = talk.reply(prompt, max_new_tokens)
        finally:
            talk.close()
        return answer_of_ours(reply.token_ids, reply.speculation)


class ManyEmbeddedAnswers:
    """The same methods on engines whose requests share steps."""

    def __init__(self, settings: Settings) -> None:
        self._methods = methods_of(settings)
        self._draft: str = settings["draft"]
        self._profile = profile_of(settings)
        self._threads: int = settings["threads"]
        self._thread = EngineThread("slipstream-engine")
        options = engine_options(settings)
        self._engine = self._thread.call(lambda: Engine.load(settings["target"], options))
        self._clients: dict[str, AsyncClient] = {}
        self._runner = asyncio.Runner()

    def load(self, arm: str) -> None:
        """See `Answerer`; a request shows whether the draft can do it."""
        self.answer(arm, [(0,)], 1)

    def answer(self, arm: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """See `Answerer`; all at once."""
        method = self._methods[arm]
        answering = all_at_once(self._client(method), prompts, max_new_tokens, method.options)
        return self._runner.run(answering)

    def facts(self) -> Facts:
        """See `Answerer`."""
        return own_facts(self._threads)

    def close(self) -> None:
        """See `Answerer`."""
        self._runner.close()
        self._thread.close()

    def _client(self, method: Method) -> AsyncClient:
        name = draft_name(method, self._draft)
        if name not in self._clients:
            profile = self._profile if name == self._draft else None
            drafter = self._thread.call(lambda: self._engine.drafter(name, profile=profile))
            backend = AsyncEmbedded(self._engine, drafter, self._thread)
            self._clients[name] = AsyncClient.of(backend)
        return self._clients[name]


async def all_at_once(
    client: AsyncClient,
    prompts: Prompts,
    max_new_tokens: int,
    speculation: SpeculationOptions,
) -> list[Answer]:
    """The answers to requests that are sent together."""
    asking = (
        client.generate(tuple(ids), max_tokens=max_new_tokens, speculation=speculation)
        for ids in prompts
    )
    return [answer_of_result(result) for result in await asyncio.gather(*asking)]


def answer_of_result(result: Result) -> Answer:
    """What a seat says of a result."""
    return answer_of_ours(result.token_ids, result.stats.speculation)


def answer_of_ours(token_ids: tuple[int, ...], at: SpeculationStats | None) -> Answer:
    """An answer, and every forward of the target: that of the prompt, and one a round."""
    forwards = len(token_ids) if at is None else 1 + at.num_spec_steps + at.num_plain_steps
    return Answer(len(token_ids), token_ids, num_forwards=forwards)


def own_facts(threads: int, *pids: int) -> Facts:
    """Of this process and of others that belong to it."""
    versions = {"slipstream": slipstream.__version__}
    return Facts((os.getpid(), *pids), versions, {"threads": threads})


def methods_of(settings: Settings) -> Mapping[str, Method]:
    """The methods of a seat by the name of their arm."""
    return {arm: parse_method(name) for arm, name in settings["methods"].items()}


def engine_options(settings: Settings) -> EngineOptions:
    """How the engines of a seat are loaded."""
    return EngineOptions(
        settings["dtype"],
        settings["numerics"],
        settings["threads"],
        settings["device"],
        max_cached_bytes=0,
    )


def profile_of(settings: Settings) -> Path | None:
    """The file in place of the draft's own profile."""
    return None if settings["profile"] is None else Path(settings["profile"])


def sit(settings: Settings) -> EmbeddedAnswers | ManyEmbeddedAnswers:
    """See `seat`."""
    return ManyEmbeddedAnswers(settings) if settings["is_concurrent"] else EmbeddedAnswers(settings)
