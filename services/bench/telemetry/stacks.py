"""The three services twice, as processes: silent, and telling of themselves."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from slipstream.local.stack import ANY_PORT, Stack, StackPlan

OFF, ON = "off", "on"
_PAGE = re.compile(r"metrics at (http://\S+)")


@dataclass(slots=True)
class Stacks:
    """Where both are reached."""

    routers: dict[str, str] = field(default_factory=dict)
    """Addresses of the routers, by whether they tell."""
    pages: list[str] = field(default_factory=list)
    """URLs that Prometheus would read."""

    def hear(self, name: str, line: str) -> None:
        """A line that one of the services logs."""
        del name
        if found := _PAGE.search(line):
            self.pages.append(found[1])


def telling(plan: StackPlan, endpoint: str, *, ratio: float) -> StackPlan:
    """The same services, each with everything on that leaves a process."""
    flags = ["--traces", "otlp", "--metrics", "otlp", "--otlp-endpoint", endpoint]
    return plan.told(*flags, "--trace-ratio", str(ratio), "--metrics-address", ANY_PORT)


@asynccontextmanager
async def two_stacks(plans: dict[str, StackPlan]) -> AsyncIterator[Stacks]:
    """Both, while the context lasts; what is left to tell is told at its end.

    Raises what `Stack.start` does.
    """
    found = Stacks()
    started: list[Stack] = []
    try:
        for name, plan in plans.items():
            started.append(Stack(plan, say=found.hear))
            found.routers[name] = await started[-1].start()
        yield found
    finally:
        for stack in started:
            await stack.stop()
