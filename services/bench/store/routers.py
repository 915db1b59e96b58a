"""Two routers before one target and draft, as processes: one keeps sessions in Redis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipstream.local.child import Say, start_child
from slipstream.local.stack import ANY_PORT, Stack, StackPlan

MEMORY, REDIS = "memory", "redis"
_GRACE_S = 5.0


@asynccontextmanager
async def two_routers(
    plan: StackPlan, store_url: str, *, say: Say
) -> AsyncIterator[dict[str, str]]:
    """Addresses of the routers, by where they keep sessions. Raises what `Stack.start` does."""
    stack = Stack(plan, say=say)
    other = None
    try:
        addresses = {MEMORY: await stack.start()}
        flags = [part for role, at in stack.engines.items() for part in (f"--{role}s", at)]
        flags += ["--address", ANY_PORT, "--store-url", store_url]
        other = await start_child("router", "slipstream.router", [*flags, *plan.router], say=say)
        addresses[REDIS] = await other.ready()
        yield addresses
    finally:
        if other is not None:
            await other.stop(_GRACE_S)
        await stack.stop()
