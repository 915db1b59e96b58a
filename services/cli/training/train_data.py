"""`slipstream train data`: have a target write training text. Knows only options and printing."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.core.errors import TrainingError
from slipstream.options import option, required

if TYPE_CHECKING:
    from slipstream.train.data_run import DataOutcome, DataReport, DataRun, ShardPlan, Spread
    from slipstream.train.shards import DataSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlags:
    """Target, files and processes of a run."""

    target: str = required("Target model: an alias, a path or a hub id.")
    prompts: tuple[Path, ...] = option(
        (),
        "Input, repeatable: .jsonl(.gz) with lines of prompt, turns or p (ids); .txt or .md.",
    )
    out: Path = required("Directory of the shards; an earlier run is continued there.")
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    dtype: str = option("auto", "auto, bfloat16, float16, float32, or q8 (8-bit weights, on CPUs).")
    threads: int | None = option(None, "CPU threads of each process.", min=1)
    max_tokens: int | None = option(
        None, "Begin no shard after so many generated tokens in all.", min=1
    )
    ray: bool = option(False, "Spread the shards over Ray workers.")
    ray_workers: int | None = option(
        None, "Ray workers; default: as many as fit the cluster.", min=1
    )

    def spread(self) -> "Spread":
        """Return what runs the shards. Raises `TrainingError` for workers without Ray."""
        from slipstream.train.data_run import write_here
        from slipstream.train.ray_data import RaySpread

        if self.ray_workers is not None and not self.ray:
            raise TrainingError("--ray-workers needs --ray")
        return RaySpread(self.ray_workers) if self.ray else write_here


@dataclass(frozen=True, slots=True)
class ShardFlags:
    """Contents of the shards."""

    max_new_tokens: int = option(160, "Longest answer, in tokens.", min=1)
    temperatures: str = option("0:0.5,0.7:0.2,1:0.3", "Temperatures and their weights.")
    batch: int = option(128, "Conversations decoded together.", min=1)
    max_prompt_tokens: int = option(
        864, "Longest prompt, in tokens; longer ones are left out.", min=1
    )
    samples_per_prompt: int = option(1, "Answers to each prompt.", min=1)
    self_prompts: int = option(0, "User turns that the target writes, and answers.", min=0)
    passage_tokens: int = option(256, "Length of the pieces of plain text, in tokens.", min=2)
    text_as_is: bool = option(False, "Take plain text as it is, without a continuation.")
    seed: int = option(0, "Seed of temperatures, order and samples.", min=0)


@with_flags
def data(flags: DataFlags, shards: ShardFlags) -> None:
    """Write training text: the target's answers to prompts, and to prompts of its own."""
    from slipstream.train.data_run import DataRun

    spread = flags.spread()
    run = DataRun(
        target=flags.target,
        files=flags.prompts,
        out=flags.out,
        settings=_settings(shards),
        device=flags.device,
        dtype=flags.dtype,
        max_tokens=flags.max_tokens,
        num_threads=flags.threads,
    )
    _write(run, spread)


def _settings(flags: ShardFlags) -> "DataSettings":
    from slipstream.train.shards import DataSettings
    from slipstream.train.sources import SourceSettings

    sources = SourceSettings(
        max_prompt_tokens=flags.max_prompt_tokens,
        passage_tokens=flags.passage_tokens,
        is_text_as_is=flags.text_as_is,
    )
    return DataSettings(
        temperatures=_temperatures(flags.temperatures),
        max_new_tokens=flags.max_new_tokens,
        batch=flags.batch,
        samples_per_prompt=flags.samples_per_prompt,
        num_self_prompts=flags.self_prompts,
        seed=flags.seed,
        sources=sources,
    )


def _temperatures(text: str) -> tuple[tuple[float, float], ...]:
    """Return the numbers of 0:0.5,1:0.5; a temperature without a weight has weight 1."""
    pairs = [part.partition(":") for part in text.split(",")]
    try:
        return tuple((float(value), float(weight or 1)) for value, _, weight in pairs)
    except ValueError:
        raise TrainingError(
            f"temperatures must be numbers with weights as 0:0.5,1:0.5, got {text!r}"
        ) from None


def _write(run: "DataRun", spread: "Spread") -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere."""
    from slipstream.train.data_run import DataHooks, write_data

    console = Console(highlight=False, soft_wrap=True)
    with progress_of(console) as bar:
        task = bar.add_task("reading prompts, loading the target", total=None)

        def plan(made: "ShardPlan") -> None:
            bar.update(task, total=len(made.shards))
            console.print(_plan_line(made))

        def report(result: "DataReport") -> None:
            bar.update(task, completed=result.num_done, description=_line(result))
            if not console.is_terminal:
                console.print(_line(result))

        outcome = write_data(run, DataHooks(time.monotonic, plan, report), spread=spread)
    console.print(_end_line(run.out, outcome))


def _plan_line(plan: "ShardPlan") -> str:
    counts = {
        "conversations": sum(len(shard.jobs) for shard in plan.shards),
        "self-prompts": sum(shard.num_self_prompts for shard in plan.shards),
        "passages": sum(len(shard.texts) for shard in plan.shards),
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    skipped = f"; prompts left out as too long: {plan.num_skipped}" if plan.num_skipped else ""
    return f"{', '.join(parts)} in {len(plan.shards)} shards{skipped}"


def _line(result: "DataReport") -> str:
    return (
        f"shard {result.num_done} of {result.num_shards}: {result.num_tokens} tokens, "
        f"{result.tokens_per_second:.0f} tokens/s, {result.seconds_left / 60:.0f} min left"
    )


def _end_line(out: Path, outcome: "DataOutcome") -> str:
    taken = f", {outcome.num_taken} are being written by others" if outcome.num_taken else ""
    return f"{out}: {outcome.num_done} of {outcome.num_shards} shards finished{taken}"
