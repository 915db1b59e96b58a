"""Training data written by many processes at once: a Ray actor for each target, a task a shard.

The shards are those of one process, byte for byte; the directory must be one that all nodes see.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.train.data_plan import DataPlan, DataRun
from slipstream.train.data_run import Worker, Written

_RESTARTS = 2
"""Restarts of a worker that dies, and further tries of a shard that it held."""


@dataclass(frozen=True, slots=True)
class RaySpread:
    """Spread of shards over `num_workers`; None means as many as fit the cluster.

    Joins the cluster that Ray's own settings name, or starts one on this machine.
    """

    num_workers: int | None = None

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            raise TrainingError("--ray needs Ray: pip install 'slipstream[ray]'")

    def __call__(self, run: DataRun, plan: DataPlan, numbers: Sequence[int]) -> Iterator[Written]:
        """Write the shards in actors; their errors are raised here."""
        import ray  # noqa: PLC0415 - an optional extra
        from ray.util import ActorPool  # noqa: PLC0415

        is_ours = not ray.is_initialized()
        if is_ours:
            ray.init(include_dashboard=False, log_to_driver=False)
        needs, total = _needs(run), ray.cluster_resources()
        fitting = int(min(total.get(name, 0) // amount for name, amount in needs.items()))
        count = self.num_workers or fitting
        if not 1 <= count <= fitting:
            raise TrainingError(f"{count} workers do not fit into a Ray cluster of {fitting}")
        kind = ray.remote(Worker).options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        actors: list[Any] = [kind.remote(_portable(run), ray.put(plan)) for _ in range(count)]
        try:
            pool: Any = ActorPool(actors)
            yield from pool.map_unordered(lambda actor, number: actor.write.remote(number), numbers)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SlipstreamError):
                raise error.cause from None  # without the trace of another process
            raise
        finally:
            for actor in actors:
                ray.kill(actor)
            if is_ours:
                ray.shutdown()


def _needs(run: DataRun) -> dict[str, int]:
    """Return the resources that Ray reserves for a worker."""
    needs = {"CPU": run.threads or 1}
    if run.device == "cpu":
        return needs
    if run.device != "cuda":
        raise TrainingError(f"the device is {run.device!r}, but Ray itself picks which: give cuda")
    return {**needs, "GPU": 1}


def _portable(run: DataRun) -> DataRun:
    """Return the run for processes that were started elsewhere."""
    target = Path(run.target).expanduser()
    name = str(target.absolute()) if target.exists() else run.target
    return replace(run, out=run.out.absolute(), target=name)
