"""Slipstream's engines in one process: one request at a time, or several that share steps.

Nothing is kept for prompts that begin alike, as configurations that share an engine get the same.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import slipstream
from slipstream.bench.engines import MethodEngines, draft_name
from slipstream.bench.figures import Reply
from slipstream.bench.methods import Method, parse_method
from slipstream.bench.peers.engine import Answer, EngineUnderTest, ProcessFacts, Prompts, Settings
from slipstream.client import AsyncClient
from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.options import SpeculationOptions
from slipstream.core.results import Result
from slipstream.core.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.engine.thread import EngineThread


class OwnEngine(EngineUnderTest):
    """Slipstream: the methods of its configurations, and its facts."""

    pids: tuple[int, ...] = ()
    """Processes beside this one."""

    def __init__(self, settings: Settings) -> None:
        names: Mapping[str, str] = settings["methods"]
        self._methods = {config: parse_method(name) for config, name in names.items()}
        self._threads: int = settings["threads"]

    def facts(self) -> ProcessFacts:
        """See `EngineUnderTest`."""
        versions = {"slipstream": slipstream.__version__}
        return ProcessFacts((os.getpid(), *self.pids), versions, {"threads": self._threads})


class EmbeddedEngine(OwnEngine):
    """Methods of `bench speed`, a request at a time."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._engines = MethodEngines(
            settings["target"],
            settings["draft"],
            engine_options(settings),
            sampling=SamplingParams(),
            profile=profile_of(settings),
        )
        self._engines.engine(settings["numerics"])

    def load(self, config: str) -> None:
        """See `EngineUnderTest`."""
        self._engines.load(self._methods[config])

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """See `EngineUnderTest`; one after the other."""
        return [self._one(config, prompt, max_new_tokens) for prompt in prompts]

    def _one(self, config: str, prompt: Any, max_new_tokens: int) -> Answer:
        conversation = self._engines.conversation(self._methods[config])
        try:
            reply: Reply = conversation.reply(prompt, max_new_tokens)
        finally:
            conversation.close()
        return answer_of_ours(reply.token_ids, reply.speculation)


class BatchedEmbeddedEngine(OwnEngine):
    """Methods of `bench speed` on engines whose requests share steps."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._draft: str = settings["draft"]
        self._profile = profile_of(settings)
        self._thread = EngineThread("slipstream-engine")
        options = engine_options(settings)
        self._engine = self._thread.call(lambda: Engine.load(settings["target"], options))
        self._clients: dict[str, AsyncClient] = {}
        self._runner = asyncio.Runner()

    def load(self, config: str) -> None:
        """See `EngineUnderTest`; a request shows whether the draft can do it."""
        self.answer(config, [(0,)], 1)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """See `EngineUnderTest`; all at once."""
        method = self._methods[config]
        answering = all_at_once(self._client(method), prompts, max_new_tokens, method.options)
        return self._runner.run(answering)

    def close(self) -> None:
        """See `EngineUnderTest`."""
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
    """Return the answers to requests that are sent together."""
    asking = (
        client.generate(tuple(ids), max_tokens=max_new_tokens, speculation=speculation)
        for ids in prompts
    )
    return [answer_of_result(result) for result in await asyncio.gather(*asking)]


def answer_of_result(result: Result) -> Answer:
    """Return a result as an answer."""
    return answer_of_ours(result.token_ids, result.stats.speculation)


def answer_of_ours(token_ids: tuple[int, ...], at: SpeculationStats | None) -> Answer:
    """Return an answer, and every forward of the target: that of the prompt, and one a round."""
    forwards = len(token_ids) if at is None else 1 + at.num_spec_steps + at.num_plain_steps
    return Answer(len(token_ids), token_ids, num_forwards=forwards)


def engine_options(settings: Settings) -> EngineOptions:
    """Return how the engines are loaded."""
    return EngineOptions(
        settings["dtype"],
        settings["numerics"],
        settings["threads"],
        settings["device"],
        max_cached_bytes=0,
    )


def profile_of(settings: Settings) -> Path | None:
    """Return the file in place of the draft's own profile."""
    return None if settings["profile"] is None else Path(settings["profile"])
