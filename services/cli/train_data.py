"""`slipstream train data`: have a target write training text. Knows only options and printing."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slipstream.cli.flags import with_flags
from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.train.data_run import DataRun, Outcome, Plan, Spread
    from slipstream.train.shards import DataSettings
    from slipstream.train.tally import DataReport

Target = Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")]
Prompts = Annotated[
    list[Path],
    typer.Option(
        default_factory=list,
        help="Input, repeatable: .jsonl(.gz) with lines of prompt, turns or p (ids); .txt or .md.",
    ),
]
Out = Annotated[Path, typer.Option(help="Directory of the shards; an earlier run goes on there.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each process.", min=1)]
MaxTokens = Annotated[
    int | None, typer.Option(help="Begin no shard after so many generated tokens in all.", min=1)
]
Ray = Annotated[bool, typer.Option("--ray", help="Spread the shards over Ray workers.")]
RayWorkers = Annotated[
    int | None, typer.Option(help="Ray workers; default: as many as fit the cluster.", min=1)
]


@dataclass(frozen=True, slots=True)
class ShardFlags:
    """Options that decide what the shards hold."""

    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 160
    temperatures: Annotated[str, typer.Option(help="Temperatures and their weights.")] = (
        "0:0.5,0.7:0.2,1:0.3"
    )
    batch: Annotated[int, typer.Option(help="Conversations decoded together.", min=1)] = 128
    max_prompt_tokens: Annotated[
        int, typer.Option(help="Longer prompts are left out; mind what training takes.", min=1)
    ] = 864
    samples_per_prompt: Annotated[int, typer.Option(help="Answers to each prompt.", min=1)] = 1
    self_prompts: Annotated[
        int, typer.Option(help="User turns that the target writes, and answers.", min=0)
    ] = 0
    passage_tokens: Annotated[
        int, typer.Option(help="Plain text is cut into pieces this long.", min=2)
    ] = 256
    text_as_is: Annotated[
        bool, typer.Option("--text-as-is", help="Take plain text as it is, without going on.")
    ] = False
    seed: Annotated[int, typer.Option(help="Seed of temperatures, order and samples.", min=0)] = 0


@with_flags
def data(  # noqa: PLR0913 - one parameter per option
    *,
    target: Target,
    prompts: Prompts,
    out: Out,
    shards: ShardFlags,
    device: Device = "cpu",
    threads: Threads = None,
    max_tokens: MaxTokens = None,
    ray: Ray = False,
    ray_workers: RayWorkers = None,
) -> None:
    """Write training text: the target's answers to prompts, and to prompts of its own."""
    from slipstream.train.data_run import DataRun

    if ray_workers is not None and not ray:
        raise TrainingError("--ray-workers needs --ray")
    run = DataRun(
        target=target,
        files=tuple(prompts),
        out=out,
        settings=_settings(shards),
        device=device,
        max_tokens=max_tokens,
        num_threads=threads,
    )
    _write(run, _spread(ray, ray_workers))


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
    """From 0:0.5,1:0.5 to its numbers; a temperature without a weight has weight 1."""
    pairs = [part.partition(":") for part in text.split(",")]
    try:
        return tuple((float(value), float(weight or 1)) for value, _, weight in pairs)
    except ValueError:
        raise TrainingError(
            f"temperatures must be numbers with weights as 0:0.5,1:0.5, got {text!r}"
        ) from None


def _spread(is_ray: bool, num_workers: int | None) -> "Spread":
    from slipstream.train.data_run import write_here
    from slipstream.train.ray_data import RaySpread

    return RaySpread(num_workers) if is_ray else write_here


def _write(run: "DataRun", spread: "Spread") -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere."""
    from slipstream.train.data_run import DataHooks, write_data

    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading prompts, loading the target", total=None)

        def plan(made: "Plan") -> None:
            bar.update(task, total=len(made.shards))
            console.print(_plan_line(made))

        def report(result: "DataReport") -> None:
            bar.update(task, completed=result.num_done, description=_line(result))
            if not console.is_terminal:
                console.print(_line(result))

        outcome = write_data(run, DataHooks(time.monotonic, plan, report), spread=spread)
    console.print(_end_line(run.out, outcome))


def _plan_line(plan: "Plan") -> str:
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


def _end_line(out: Path, outcome: "Outcome") -> str:
    taken = f", {outcome.num_taken} are being written by others" if outcome.num_taken else ""
    return f"{out}: {outcome.num_done} of {outcome.num_shards} shards finished{taken}"
