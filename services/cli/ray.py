"""`slipstream ray`: pools of targets and drafts on a Ray cluster. Loads Ray when it is needed."""

import asyncio
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from slipstream.cli.flags import with_flags
from slipstream.cli.running import run_until_told
from slipstream.cli.up import NO_PROCESS, PortFlags, StackFlags
from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from slipstream.cluster.plan import ClusterPlan, PoolPlan

app = typer.Typer(help="Run pools of targets and drafts on a Ray cluster.", no_args_is_help=True)
_POOLS = "Pools"
_VANILLA = "vanilla:"


@app.callback()
def _group() -> None:
    """Run pools of targets and drafts on a Ray cluster, scaled apart, and a router beside them."""


@dataclass(frozen=True, slots=True)
class PoolFlags:
    """How many replicas there are, what each takes, and what asks for more."""

    min_targets: Annotated[int, Option(help="Targets at least.", rich_help_panel=_POOLS)] = 1
    max_targets: Annotated[
        int | None, Option(help="And at most; unset, as many.", rich_help_panel=_POOLS)
    ] = None
    min_drafts: Annotated[int, Option(help="Drafts at least.", rich_help_panel=_POOLS)] = 1
    max_drafts: Annotated[
        int | None, Option(help="And at most; unset, as many.", rich_help_panel=_POOLS)
    ] = None
    target_gpus: Annotated[float, Option(help="GPUs of a target.", rich_help_panel=_POOLS)] = 0.0
    draft_gpus: Annotated[float, Option(help="GPUs of a draft.", rich_help_panel=_POOLS)] = 0.0
    target_cpus: Annotated[
        float, Option(help="Processors kept for a target.", rich_help_panel=_POOLS)
    ] = 1.0
    draft_cpus: Annotated[
        float, Option(help="Processors kept for a draft.", rich_help_panel=_POOLS)
    ] = 1.0
    target_load: Annotated[
        float, Option(help="Sessions and waiting jobs a target.", rich_help_panel=_POOLS)
    ] = 16.0
    draft_load: Annotated[
        float, Option(help="Sessions and waiting proposals a draft.", rich_help_panel=_POOLS)
    ] = 16.0
    look_back_s: Annotated[
        float, Option(help="Over which these are means.", rich_help_panel=_POOLS)
    ] = 30.0
    upscale_delay_s: Annotated[
        float, Option(help="How long more must be wanted.", rich_help_panel=_POOLS)
    ] = 30.0
    downscale_delay_s: Annotated[
        float, Option(help="How long fewer must be wanted.", rich_help_panel=_POOLS)
    ] = 600.0

    def pool(self, role: str, options: dict[str, Any]) -> "PoolPlan":
        """The pool of a role, whose services are told `options`."""
        from slipstream.cluster.plan import PoolPlan

        least, most = getattr(self, f"min_{role}s"), getattr(self, f"max_{role}s")
        return PoolPlan(
            options=options,
            min_replicas=least,
            max_replicas=least if most is None else most,
            num_gpus=getattr(self, f"{role}_gpus"),
            num_cpus=getattr(self, f"{role}_cpus"),
            load_per_replica=getattr(self, f"{role}_load"),
            look_back_s=self.look_back_s,
            upscale_delay_s=self.upscale_delay_s,
            downscale_delay_s=self.downscale_delay_s,
        )


@dataclass(frozen=True, slots=True)
class ShareFlags:
    """What both pools and the router share."""

    store_url: Annotated[
        str | None,
        Option(help="Redis that replicas announce themselves in, and that keeps sessions."),
    ] = None
    name: Annotated[str, Option(help="Of the application in the cluster.")] = "slipstream"


@dataclass(frozen=True, slots=True)
class PlaceFlags:
    """Where the pools run, and the router listens."""

    address: Annotated[
        str | None,
        Option(help="The cluster's head, HOST:PORT, or auto; unset, a cluster is started here."),
    ] = None
    host: Annotated[str, Option(help="Where the router listens.")] = "127.0.0.1"


@app.command("up")
@with_flags
def up(
    models: StackFlags, pools: PoolFlags, share: ShareFlags, place: PlaceFlags, port: PortFlags
) -> None:
    """Deploy the pools and run a router beside them, until told to stop.

    Prints `ready HOST:PORT` once requests can be sent there. Ctrl-C or SIGTERM lets running
    requests finish and removes the pools; a second one does not wait.
    """
    _check_installed()
    from slipstream.cluster.stack import Place, RayStack
    from slipstream.local.child import show

    plan = _plan(models, pools, share)
    models.fetch()
    router = ["--address", f"{place.host}:{port.port}", "--grace-s", f"{models.grace_s:g}"]
    router += [] if plan.config is None else ["--config", plan.config]
    router += ["--drafter", models.draft] if plan.draft is None else []
    where = Place(place.address, share.name)
    stack = RayStack(plan, where, router=router, say=show)
    stack.connect()
    try:
        asyncio.run(run_until_told(stack))
    finally:
        stack.disconnect()


@app.command("config")
@with_flags
def config(models: StackFlags, pools: PoolFlags, share: ShareFlags) -> None:
    """Write the configuration of Ray Serve for these pools, for `serve deploy` or RayService.

    Routers are started apart, with the same --store-url, and with registry: for both pools.
    """
    _check_installed()
    from slipstream.cluster.plan import serve_config

    if share.store_url is None:
        raise InvalidRequest(
            "--store-url is needed: routers find these pools there and nowhere else"
        )
    text = serve_config(_plan(models, pools, share), name=share.name)
    typer.echo(text, nl=False)


def _plan(models: StackFlags, pools: PoolFlags, share: ShareFlags) -> "ClusterPlan":
    from slipstream.cluster.plan import ClusterPlan

    target, draft = _options(models)
    return ClusterPlan(
        target=pools.pool("target", target),
        draft=None if models.draft in NO_PROCESS else pools.pool("draft", draft),
        grace_s=models.grace_s,
        store_url=share.store_url,
        config=None if models.config is None else str(models.config.expanduser().absolute()),
    )


def _options(models: StackFlags) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of targets and of drafts. What is a path here is the same one for every process."""
    model = _anywhere(models.model)
    is_vanilla = models.draft.startswith(_VANILLA)
    draft = _anywhere(models.draft.removeprefix(_VANILLA))
    profile = None if models.profile is None else _anywhere(str(models.profile))
    engine: dict[str, Any] = {
        "dtype": models.dtype,
        "device": models.device,
        "threads": models.threads,
    }
    target = {"model": model, "numerics": models.numerics, **engine}
    drafter: dict[str, Any] = {
        "draft": f"{_VANILLA}{draft}" if is_vanilla else draft,
        "target_model": model,
    }
    drafter |= {"profile": profile, **engine}
    return _given(target), _given(drafter)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _anywhere(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _check_installed() -> None:
    if find_spec("ray") is None:
        raise InvalidRequest("slipstream ray needs Ray: pip install 'slipstream[ray]'")
