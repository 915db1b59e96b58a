"""`slipstream ray`: pools of targets and drafts on a Ray cluster. Loads Ray late."""

import asyncio
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from slipstream.cli.engine import VANILLA
from slipstream.cli.flags import with_flags
from slipstream.cli.up import NO_PROCESS, Port, StackFlags, run_until_signal
from slipstream.core.errors import InvalidRequest
from slipstream.options import option, required

if TYPE_CHECKING:
    from slipstream.cluster.plan import ClusterPlan, PoolPlan

app = typer.Typer(help="Run pools of targets and drafts on a Ray cluster.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run pools of targets and drafts on a Ray cluster, scaled apart, and a router beside them."""


@dataclass(frozen=True, slots=True)
class PoolFlags:
    """Number of replicas in both pools, their resources, and the load that adds replicas."""

    PANEL: ClassVar[str] = "Pools"

    min_targets: int = option(1, "Minimum number of targets.")
    max_targets: int | None = option(None, "Maximum number of targets; unset, the minimum.")
    min_drafts: int = option(1, "Minimum number of drafts.")
    max_drafts: int | None = option(None, "Maximum number of drafts; unset, the minimum.")
    target_gpus: float = option(0.0, "GPUs of a target.")
    draft_gpus: float = option(0.0, "GPUs of a draft.")
    target_cpus: float = option(1.0, "Processors reserved for a target.")
    draft_cpus: float = option(1.0, "Processors reserved for a draft.")
    target_load: float = option(16.0, "Running sessions and waiting requests for each target.")
    draft_load: float = option(3.0, "Proposals at once, on average, for each draft.")
    look_back_s: float = option(30.0, "Seconds over which these loads are averaged.")
    upscale_delay_s: float = option(30.0, "Seconds of higher load before replicas are added.")
    downscale_delay_s: float = option(600.0, "Seconds of lower load before replicas are removed.")

    def pool(self, role: str, options: dict[str, Any]) -> "PoolPlan":
        """Return the pool of a role, whose services get `options` unless they are None."""
        from slipstream.cluster.plan import POOLS

        least, most = getattr(self, f"min_{role}s"), getattr(self, f"max_{role}s")
        return replace(
            POOLS[role],
            options={name: value for name, value in options.items() if value is not None},
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
class ApplicationFlags:
    """The application of both pools, and the store that they share with routers."""

    store_url: str = required(
        "Redis that replicas announce themselves in, and that keeps sessions."
    )
    name: str = option("slipstream", "Name of the application in the cluster.")


Address = Annotated[
    str | None,
    typer.Option(
        help="The cluster's head, HOST:PORT, or auto; unset, a cluster is started on this machine."
    ),
]
Host = Annotated[str, typer.Option(help="Host that the router listens on.")]


@app.command("up")
@with_flags
def up(
    *,
    models: StackFlags,
    pools: PoolFlags,
    application: ApplicationFlags,
    address: Address = None,
    host: Host = "127.0.0.1",
    port: Port = 50051,
) -> None:
    """Deploy the pools and run a router beside them, until a signal stops it.

    Prints `ready HOST:PORT` once requests can be sent there. Ctrl-C or SIGTERM lets running
    requests finish and removes the pools; a second one does not wait.
    """
    _check_installed()
    from slipstream.cluster.stack import RayStack
    from slipstream.local.child import show

    plan = _plan(models, pools, application)
    models.fetch()
    router = ["--address", f"{host}:{port}", "--grace-s", f"{models.grace_s:g}"]
    router += [] if plan.config is None else ["--config", plan.config]
    router += ["--drafter", models.draft] if plan.draft is None else []
    stack = RayStack(plan, address, application.name, router=router, on_line=show)
    stack.connect()
    try:
        asyncio.run(run_until_signal(stack))
    finally:
        stack.disconnect()


def _plan(models: StackFlags, pools: PoolFlags, application: ApplicationFlags) -> "ClusterPlan":
    """Return the plan of both pools. Paths on this machine are the same for every process."""
    from slipstream.cluster.plan import ClusterPlan

    model, vanilla = _absolute(models.model), models.draft.startswith(VANILLA)
    draft = _absolute(models.draft.removeprefix(VANILLA))
    engine = {"dtype": models.dtype, "device": models.device, "threads": models.threads}
    drafter = {
        "draft": f"{VANILLA}{draft}" if vanilla else draft,
        "target_model": model,
        "profile": None if models.profile is None else _absolute(str(models.profile)),
    }
    target = {"model": model, "numerics": models.numerics}
    return ClusterPlan(
        target=pools.pool("target", target | engine),
        draft=None if models.draft in NO_PROCESS else pools.pool("draft", drafter | engine),
        grace_s=models.grace_s,
        store_url=application.store_url,
        config=None if models.config is None else str(models.config.expanduser().absolute()),
    )


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _check_installed() -> None:
    if find_spec("ray") is None:
        raise InvalidRequest("slipstream ray needs Ray: pip install 'slipstream[ray]'")
