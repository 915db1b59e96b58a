"""Output of `slipstream bench`: a bar while it runs, a terminal, a file with its facts."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.cli.bench_flags import ModelFlags, OutputFlags, PromptFlags
from slipstream.cli.up import StackFlags


def command() -> str:
    """Return the command line that is running."""
    return shlex.join(["slipstream", *sys.argv[1:]])


@contextmanager
def step_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on standard error, on a terminal only; give what advances it."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, disable=not errors.is_terminal
    ) as bar:
        task = bar.add_task("loading", total=total)

        def advance(method: str) -> None:
            bar.update(task, advance=1, description=method)

        yield advance


def figures_console() -> Console:
    """Return a console as wide as the terminal; a file takes any width."""
    shown = Console(highlight=False)
    if not shown.is_terminal:
        shown.width = 240
    return shown


def stack_of(models: ModelFlags) -> StackFlags:
    """Return the services for these models."""
    return StackFlags(
        models.target,
        models.draft,
        models.dtype,
        threads=models.threads,
        device=models.device,
        profile=models.profile,
    )


def machine_facts(device: str) -> dict[str, Any]:
    """Return versions, machine and command line, for a file of figures."""
    from slipstream.bench.environment import environment

    return {**environment(device), "command": command()}


def model_facts(models: ModelFlags, *others: str) -> dict[str, Any]:
    """Return the machine, and what runs on it: the target and other models by name."""
    from slipstream.bench.environment import running_dtype

    return {
        **machine_facts(models.device),
        "target": models.target,
        "dtype": running_dtype(models.dtype, models.device),
        **weights_facts(models.target, *others),
    }


def weights_facts(*names: str) -> dict[str, Any]:
    """Return the digests of models that are on this machine."""
    from slipstream.models.store.digests import weights_digests
    from slipstream.models.store.resolve import find_local

    found = {name: weights_digests(find_local(name)) for name in dict.fromkeys(names)}
    return {"weights_sha256": found}


def prompt_facts(prompts: PromptFlags) -> dict[str, Any]:
    """Return which file was asked from."""
    from slipstream.models.store.digests import file_digest

    path = prompts.path()
    return {"prompts": path.name, "prompts_sha256": file_digest(path)}


def show_lines(lines: Iterable[str]) -> None:
    """Print sentences about figures."""
    for line in lines:
        figures_console().print(line, markup=False, soft_wrap=True)


def check_writable(output: OutputFlags) -> None:
    """Raise `InvalidRequest` for a file that can't be written, before hours are spent."""
    if output.json is not None:
        from slipstream.bench.environment import check_writable as check

        check(output.json)


def write(output: OutputFlags, values: dict[str, Any]) -> None:
    """Write the file that was asked for, if any."""
    if output.json is None:
        return
    from slipstream.bench.environment import write_json

    write_json(output.json, values)
