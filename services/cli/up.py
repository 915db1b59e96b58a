"""`slipstream up`: target, draft and router on this machine, until told to stop."""

import asyncio
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.cli.running import run_until_told
from slipstream.core.errors import UnsupportedCombination

if TYPE_CHECKING:
    from slipstream.local.stack import StackPlan

_NOWHERE = "none"
NO_PROCESS = ("ngram", "none")
"""Drafts that need no service of their own: the router drafts n-grams itself."""


@dataclass(frozen=True, slots=True)
class StackFlags:
    """What the services load, and how. What is not given is as each service has it by itself."""

    model: Annotated[
        str, typer.Option(help="Target: an alias, a path or OWNER/NAME of the hub.")
    ] = "smollm2-135m"
    draft: Annotated[
        str,
        typer.Option(help="glide, ngram, none, vanilla:MODEL or a directory of GliDe weights."),
    ] = "glide"
    dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, float16 or float32.")] = None
    numerics: Annotated[str | None, typer.Option(help="invariant or fast.")] = None
    threads: Annotated[int | None, typer.Option(help="CPU threads of target and draft, each.")] = (
        None
    )
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None
    profile: Annotated[
        Path | None,
        typer.Option(help="Profile file of `slipstream calibrate`; default: the draft's own."),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="TOML file with tables target, draft and router.")
    ] = None
    grace_s: Annotated[
        float, typer.Option(help="Seconds that running requests get when all is to stop.")
    ] = 30.0

    def plan(self, *, port: int) -> "StackPlan":
        """The flags of each service."""
        from slipstream.local.stack import StackPlan

        file = _given("config", self.config)
        engine = [*file, *_given("dtype", self.dtype), *_given("device", self.device)]
        engine += _given("threads", self.threads)
        target = (*engine, "--model", self.model, *_given("numerics", self.numerics))
        draft = (*engine, "--draft", self.draft, "--target-model", self.model)
        draft += tuple(_given("profile", self.profile))
        if self.draft in NO_PROCESS:
            if self.profile is not None:
                raise UnsupportedCombination(f"the draft is {self.draft}, which takes no profile")
            router = (*file, "--drafter", self.draft)
            return StackPlan(target, None, router, port, self.grace_s)
        takes_turns = self.threads is None and self.device in (None, "cpu")
        return StackPlan(target, draft, tuple(file), port, self.grace_s, takes_turns)

    def http(self) -> tuple[str, ...]:
        """The flags of an HTTP front."""
        return tuple(_given("config", self.config))

    def fetch(self) -> None:
        """Get the models that are not here yet, showing what is waited for."""
        from slipstream.models.store.resolve import resolve

        with bars() as progress:
            resolve(self.model, progress=progress)
            if self.draft.startswith("vanilla:"):
                resolve(self.draft.removeprefix("vanilla:"), progress=progress)


@dataclass(frozen=True, slots=True)
class PortFlags:
    """Where requests are taken."""

    port: Annotated[int, typer.Option(help="Of the router; 0 takes any that is free.")] = 50051
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Also serve OpenAI's HTTP API there; 0 takes any that is free."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class KeepFlags:
    """What stays of requests."""

    traces: Annotated[
        str | None,
        typer.Option(
            help="Directory for traces of all requests, which `slipstream trace` shows; or none.",
            show_default="the cache directory's traces, unless a configuration says otherwise",
        ),
    ] = None

    def directory(self, config: Path | None) -> Path | None:
        """Where traces are kept. None for nowhere, or for what a configuration says of them."""
        from slipstream.config import load_config, traces_dir
        from slipstream.telemetry.config import SECTION, TelemetryConfig

        if self.traces in ("", _NOWHERE):
            return None
        if self.traces is not None:
            return Path(self.traces).expanduser().absolute()
        said = load_config(TelemetryConfig, section=SECTION, file=config)
        return None if said.traces else traces_dir()


@with_flags
def up(models: StackFlags, place: PortFlags, keep: KeepFlags) -> None:
    """Run target, draft and router on this machine, and with --http a front for OpenAI's clients.

    Prints `ready HOST:PORT` once requests can be sent there. The services' logs go to standard
    error. Ctrl-C or SIGTERM lets running requests finish; a second one does not.
    """
    from slipstream.local.child import show
    from slipstream.local.stack import Stack

    plan, directory = models.plan(port=place.port), keep.directory(models.config)
    if place.http is not None:
        plan = replace(plan, http=models.http(), http_port=place.http)
    if directory is not None:
        plan = plan.traced(directory)
    models.fetch()
    asyncio.run(run_until_told(Stack(plan, say=show), hint=_where(directory)))


def _where(traces: Path | None) -> str | None:
    """How to see a trace."""
    from slipstream.config import traces_dir

    if traces is None:
        return None
    place = "" if traces == traces_dir() else f" --dir {shlex.quote(str(traces))}"
    return f"traces are kept in {traces}; `slipstream trace --last{place}` shows the last request"


def _given(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]
