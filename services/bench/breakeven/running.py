"""Has a plan measured on real engines: loads them, and waits as exactly as the machine can."""

import asyncio
import selectors
import time
from collections.abc import Callable, Sequence

from slipstream.bench.breakeven.plan import BreakEvenPlan
from slipstream.bench.breakeven.run import Measured, Times, run_break_even
from slipstream.bench.breakeven.stand import open_stand
from slipstream.client.engine import EngineOptions


def measure(
    target: str,
    draft: str,
    options: EngineOptions,
    texts: Sequence[str],
    plan: BreakEvenPlan,
    *,
    advance: Callable[[str], None],
) -> Measured:
    """See `run_break_even` and `open_stand`."""

    async def run() -> Measured:
        async with open_stand(target, draft, options, texts) as stand:
            times = Times(time.perf_counter, asyncio.sleep)
            return await run_break_even(stand, plan, times, advance=advance)

    with asyncio.Runner(loop_factory=_exact_loop) as runner:
        return runner.run(run())


def _exact_loop() -> asyncio.AbstractEventLoop:
    """One whose timers are exact to some microseconds: the usual selector counts whole ms."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
