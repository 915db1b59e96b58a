"""`slipstream train data`: have a target write training text. Knows only options and printing."""

import time
from dataclasses import dataclass

from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.core.errors import TrainingError
from slipstream.options import option
from slipstream.train.data_plan import DataPlan, DataRun
from slipstream.train.data_run import DataHooks, DataReport, Spread, write_data, write_here
from slipstream.train.ray_data import RaySpread


@dataclass(frozen=True, slots=True)
class RayFlags:
    """Processes that write."""

    ray: bool = option(False, "Spread the shards over Ray workers.")
    ray_workers: int | None = option(
        None, "Ray workers; default: as many as fit the cluster.", min=1
    )

    def spread(self) -> Spread:
        """Return what runs the shards. Raises `TrainingError` for workers without Ray."""
        if self.ray_workers is not None and not self.ray:
            raise TrainingError("--ray-workers needs --ray")
        return RaySpread(self.ray_workers) if self.ray else write_here


@with_flags
def data(run: DataRun, workers: RayFlags) -> None:
    """Write training text: the target's answers to prompts."""
    spread, console = workers.spread(), Console(highlight=False, soft_wrap=True)
    with progress_of(console) as bar:
        task = bar.add_task("reading prompts, loading the target", total=None)

        def plan(made: DataPlan) -> None:
            bar.update(task, total=len(made.shards))
            skipped = f"; too long, left out: {made.num_skipped}" if made.num_skipped else ""
            count = sum(map(len, made.shards))
            console.print(f"{count} conversations in {len(made.shards)} shards{skipped}")

        def report(result: DataReport) -> None:
            bar.update(task, completed=result.num_done, description=_line(result))
            if not console.is_terminal:
                console.print(_line(result))

        done, total = write_data(run, DataHooks(time.monotonic, plan, report), spread=spread)
    console.print(f"{run.out}: {done} of {total} shards finished")


def _line(result: DataReport) -> str:
    return (
        f"shard {result.num_done} of {result.num_shards}: {result.num_tokens} tokens, "
        f"{result.tokens_per_second:.0f} tokens/s, {result.seconds_left / 60:.0f} min left"
    )
