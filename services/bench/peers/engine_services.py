"""Slipstream's three services: requests go through a router on this machine."""

import asyncio
from contextlib import ExitStack
from typing import Any

from slipstream.bench.peers.engine import Answer, Prompts, Settings
from slipstream.bench.peers.engine_embedded import OwnEngine, all_at_once, answer_of_result
from slipstream.bench.services import LocalServices
from slipstream.client import AsyncClient, Client
from slipstream.local.stack import StackPlan


class RoutedEngine(OwnEngine):
    """Methods as requests to a router."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._opened = ExitStack()
        try:
            self._services = self._opened.enter_context(LocalServices(_plan(settings["stack"])))
            self._client = self._opened.enter_context(Client(self._services.address))
        except BaseException:
            self._opened.close()
            raise
        self.pids = self._services.pids
        self._runner = self._opened.enter_context(asyncio.Runner())
        self._many: AsyncClient | None = None

    def load(self, config: str) -> None:
        """See `EngineUnderTest`; the services are asked, and refuse what they can't do."""
        self._client.generate((0,), max_tokens=1, speculation=self._methods[config].options)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """See `EngineUnderTest`; all at once."""
        options = self._methods[config].options
        if len(prompts) == 1:
            prompt = tuple(prompts[0])
            asked = self._client.generate(prompt, max_tokens=max_new_tokens, speculation=options)
            return [answer_of_result(asked)]
        return self._runner.run(self._together(prompts, max_new_tokens, options))

    def close(self) -> None:
        """See `EngineUnderTest`."""
        if self._many is not None:
            self._runner.run(self._many.aclose())
        self._opened.close()

    async def _together(self, prompts: Prompts, max_new_tokens: int, options: Any) -> list[Answer]:
        if self._many is None:
            self._many = AsyncClient(self._services.address)
        return await all_at_once(self._many, prompts, max_new_tokens, options)


def _plan(values: dict[str, Any]) -> StackPlan:
    """Return the services, which keep nothing for prompts that begin alike."""
    target = (*values["target"], "--max-parked-bytes", "0")
    draft, router = tuple(values["draft"]), tuple(values["router"])
    return StackPlan(target, draft, router, takes_turns=values["takes_turns"])
