"""`slipstream train data`: have a target write training text. Knows only options and printing."""

import time

from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.train.data_run import DataReport, DataRun, make_plan, write_data


@with_flags
def data(run: DataRun) -> None:
    """Write training text: the target's answers to prompts."""
    console = Console(highlight=False, soft_wrap=True)
    plan = make_plan(run)
    total, count = len(plan.shards), sum(map(len, plan.shards))
    skipped = f"; too long, left out: {plan.num_skipped}" if plan.num_skipped else ""
    console.print(f"{count} conversations in {total} shards{skipped}")
    with progress_of(console) as bar:
        task = bar.add_task("loading the target", total=total)

        def report(result: DataReport) -> None:
            line = (
                f"shard {result.num_done} of {total}: {result.num_tokens} tokens,"
                f" {result.tokens_per_second:.0f} tokens/s,"
                f" {result.seconds_left / 60:.0f} min left"
            )
            bar.update(task, completed=result.num_done, description=line)
            if not console.is_terminal:
                console.print(line)

        done = write_data(run, plan, clock=time.monotonic, report=report)
    console.print(f"{run.out}: {done} of {total} shards finished")
