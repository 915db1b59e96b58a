"""Slipstream under test: engines in this process, or requests to its services.

Nothing is kept for prompts that begin alike, as configurations that share an engine get the same.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import slipstream
from slipstream.bench.engines import MethodEngines, draft_name
from slipstream.bench.methods import Method, parse_method
from slipstream.bench.peers.engine import (
    EngineAnswer,
    EngineSettings,
    EngineUnderTest,
    ProcessFacts,
    Prompts,
)
from slipstream.bench.services import LocalServices
from slipstream.client import AsyncClient, Client
from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.request.options import SpeculationOptions
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.engine.thread import EngineThread
from slipstream.local.stack import StackPlan


class OwnEngine(EngineUnderTest):
    """Slipstream: the methods of its configurations, and its facts."""

    pids: tuple[int, ...] = ()
    """Processes beside this one."""

    def __init__(self, settings: EngineSettings) -> None:
        names: Mapping[str, str] = settings["methods"]
        self._methods = {config: parse_method(name) for config, name in names.items()}
        self._threads: int = settings["threads"]

    def facts(self) -> ProcessFacts:
        """See `EngineUnderTest`."""
        versions = {"slipstream": slipstream.__version__}
        return ProcessFacts((os.getpid(), *self.pids), versions, {"threads": self._threads})


class EmbeddedEngine(OwnEngine):
    """Methods of `bench speed`, a request at a time."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._engines = MethodEngines(
            settings["target"],
            settings["draft"],
            _engine_options(settings),
            sampling=SamplingParams(),
            profile=_profile(settings),
        )
        self._engines.engine(settings["numerics"])

    def load(self, config: str) -> None:
        """See `EngineUnderTest`."""
        self._engines.load(self._methods[config])

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`; one after the other."""
        return [self._one(config, prompt, max_new_tokens) for prompt in prompts]

    def _one(self, config: str, prompt: Any, max_new_tokens: int) -> EngineAnswer:
        with closing(self._engines.conversation(self._methods[config])) as conversation:
            reply = conversation.reply(prompt, max_new_tokens)
        return _answer(reply.token_ids, reply.speculation)


class BatchedEngine(OwnEngine):
    """Methods of `bench speed` on engines whose requests share steps."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._draft: str = settings["draft"]
        self._profile = _profile(settings)
        self._thread = EngineThread("slipstream-engine")
        options = _engine_options(settings)
        self._engine = self._thread.call(lambda: Engine.load(settings["target"], options))
        self._clients: dict[str, AsyncClient] = {}
        self._runner = asyncio.Runner()

    def load(self, config: str) -> None:
        """See `EngineUnderTest`; a request shows whether the draft can do it."""
        self.answer(config, [(0,)], 1)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`; all at once."""
        method = self._methods[config]
        answers = _all_at_once(self._client(method), prompts, max_new_tokens, method.options)
        return self._runner.run(answers)

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


class RoutedEngine(OwnEngine):
    """Methods as requests to a router on this machine, behind which are a target and a draft."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._opened = ExitStack()
        try:
            services = self._opened.enter_context(LocalServices(_stack(settings["stack"])))
            self._client = self._opened.enter_context(Client(services.address))
        except BaseException:
            self._opened.close()
            raise
        self.pids = services.pids
        self._address = services.address
        self._runner = self._opened.enter_context(asyncio.Runner())
        self._many: AsyncClient | None = None

    def load(self, config: str) -> None:
        """See `EngineUnderTest`; the services refuse what they can't do."""
        self.answer(config, [(0,)], 1)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`; all at once."""
        options = self._methods[config].options
        if len(prompts) > 1:
            return self._runner.run(self._together(prompts, max_new_tokens, options))
        result = self._client.generate(
            tuple(prompts[0]), max_tokens=max_new_tokens, speculation=options
        )
        return [_answer(result.token_ids, result.stats.speculation)]

    def close(self) -> None:
        """See `EngineUnderTest`."""
        if self._many is not None:
            self._runner.run(self._many.aclose())
        self._opened.close()

    async def _together(
        self, prompts: Prompts, max_new_tokens: int, options: SpeculationOptions
    ) -> list[EngineAnswer]:
        self._many = self._many or AsyncClient(self._address)
        return await _all_at_once(self._many, prompts, max_new_tokens, options)


async def _all_at_once(
    client: AsyncClient, prompts: Prompts, max_new_tokens: int, options: SpeculationOptions
) -> list[EngineAnswer]:
    """Return the answers to requests that are sent together."""
    requests = (
        client.generate(tuple(ids), max_tokens=max_new_tokens, speculation=options)
        for ids in prompts
    )
    results = await asyncio.gather(*requests)
    return [_answer(result.token_ids, result.stats.speculation) for result in results]


def _answer(token_ids: tuple[int, ...], at: SpeculationStats | None) -> EngineAnswer:
    """Return an answer, and every forward of the target: that of the prompt, and one a round."""
    forwards = len(token_ids) if at is None else 1 + at.num_spec_steps + at.num_plain_steps
    return EngineAnswer(len(token_ids), token_ids, num_forwards=forwards)


def _engine_options(settings: EngineSettings) -> EngineOptions:
    names = ("dtype", "numerics", "threads", "device")
    return EngineOptions(**{name: settings[name] for name in names}, max_cached_bytes=0)


def _profile(settings: EngineSettings) -> Path | None:
    """Return the file in place of the draft's own profile."""
    return None if settings["profile"] is None else Path(settings["profile"])


def _stack(values: dict[str, Any]) -> StackPlan:
    """Return the services, which keep nothing for prompts that begin alike."""
    target = (*values["target"], "--max-parked-bytes", "0")
    draft, router = tuple(values["draft"]), tuple(values["router"])
    return StackPlan(target, draft, router, takes_turns=values["takes_turns"])
