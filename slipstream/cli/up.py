"""`slipstream up`: target, draft and router on this machine, until a signal stops them."""

import asyncio
import shlex
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from slipstream.cli.engine import fetch
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, DraftFlags
from slipstream.cli.progress import bars, waiting
from slipstream.config import load_config, traces_dir
from slipstream.core.errors import UnsupportedCombination
from slipstream.core.policy.options import EAGLE
from slipstream.local.child import show
from slipstream.local.stack import Stack, StackPlan
from slipstream.options import option
from slipstream.telemetry.config import SECTION, TelemetryConfig

NO_PROCESS = ("ngram", "none")
"""Drafts that need no service of their own: the router drafts n-grams itself."""
_NO_TRACES = ("", "none")


@dataclass(frozen=True, slots=True)
class StackFlags(DraftFlags):
    """Models of the services, and how they run; services have defaults for what is not given."""

    model: str = option(DEFAULT_TARGET, "Target: an alias, a path or OWNER/NAME of the hub.")
    config: Path | None = option(None, "TOML file with tables target, draft and router.")
    grace_s: float = option(30.0, "Seconds that running requests get to finish at a stop.")
    port: int = option(50051, "Port of the router; 0 takes any free one.")
    http: int | None = option(
        None, "Also serve OpenAI's HTTP API at this port; 0 takes any free one.", metavar="PORT"
    )
    traces: str | None = option(
        None,
        "Directory for traces of all requests, which `slipstream trace` shows; or none.",
        show_default="the cache directory's traces, unless a configuration names another place",
    )

    def plan(self, traces: Path | None = None) -> StackPlan:
        """Return the flags of each service; all requests are traced, to files in a directory, where
        one is given."""
        file, engine = self.flags("config"), self.flags("config", "dtype", "device", "threads")
        target = (*engine, "--model", self.model, *self.flags("numerics"))
        if self.draft and self.draft.startswith(EAGLE):  # such heads read hidden states
            target += ("--hidden-layers", self.draft)
        roles = {"target": target, "router": file}
        takes_turns = self.threads is None and self.device in (None, "cpu")
        if self.draft not in NO_PROCESS:
            draft = (*engine, "--draft", self.draft or "glide", "--target-model", self.model)
            roles["draft"] = (*draft, *self.flags("profile"))
        elif self.profile is not None:
            raise UnsupportedCombination(f"the draft is {self.draft}, which takes no profile")
        else:
            roles["router"], takes_turns = (*file, "--drafter", self.draft), True
        if self.http is not None:
            roles["http"] = file
        if traces is not None:
            tracing = ("--traces", f"file:{traces}", "--trace-ratio", "1")
            roles = {role: (*tracing, *own) for role, own in roles.items()}
        return StackPlan(roles, self.port, self.grace_s, takes_turns, self.http or 0)

    def flags(self, *names: str) -> tuple[str, ...]:
        """Return the flags of services for those of these options that are given."""
        given = self.given()
        return tuple(
            part for name in names if name in given for part in (f"--{name}", str(given[name]))
        )

    def fetch(self) -> None:
        """Fetch the models that are not on this machine, with a bar."""
        with bars() as progress:
            fetch(self.model, self.draft or "glide", progress)


@with_flags
def up(models: StackFlags) -> None:
    """Run target, draft and router on this machine, and with --http a front for OpenAI's clients.

    Prints `ready HOST:PORT` once requests can be sent there. The services' logs go to standard
    error. Ctrl-C or SIGTERM lets running requests finish; a second one does not.
    """
    directory = traces_directory(models.traces, models.config)
    plan = models.plan(directory)
    models.fetch()
    with ExitStack() as starting:
        starting.enter_context(waiting("starting the services"))

        def on_ready() -> None:
            starting.close()
            if directory is not None:
                flag = "" if directory == traces_dir() else f" --dir {shlex.quote(str(directory))}"
                shown = f"`slipstream trace --last{flag}` shows the last request"
                typer.echo(f"traces are kept in {directory}; {shown}", err=True)

        asyncio.run(_run_until_signal(Stack(plan, on_line=show), on_ready=on_ready))


def traces_directory(given: str | None, config: Path | None) -> Path | None:
    """Return where traces are kept; None for nowhere, or where a configuration sends them."""
    if given is not None:
        return None if given in _NO_TRACES else Path(given).expanduser().absolute()
    telemetry = load_config(TelemetryConfig, section=SECTION, file=config)
    return None if telemetry.traces else traces_dir()


async def _run_until_signal(stack: Stack, *, on_ready: Callable[[], None]) -> None:
    """Start, print `ready HOST:PORT`, and stop at SIGTERM or SIGINT; a second one hurries that."""
    task = asyncio.current_task()
    assert task is not None
    _on_signals(task.cancel)
    try:
        with suppress(asyncio.CancelledError):
            address = await stack.start()
            on_ready()
            typer.echo(f"ready {address}")
            await stack.watch()
    finally:
        try:
            await stack.stop()
        except asyncio.CancelledError:
            _on_signals(lambda: None)
            await stack.stop(hurry=True)


def _on_signals(action: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, action)
