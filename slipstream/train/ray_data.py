"""Training data written by many processes at once: a Ray actor for each target, a task a shard.

The shards are those of one process, byte for byte; the directory must be one that all nodes see.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.train.data_run import DataPlan, DataRun, ShardWriter

_RESTARTS = 2
"""Restarts of a worker that dies, and further tries of a shard that it held."""


def write_on_ray(run: DataRun, plan: DataPlan, numbers: Sequence[int]) -> Iterator[int]:
    """Write shards in as many actors as fit the cluster; their errors are raised here.

    Joins the cluster that Ray's own settings name, or starts one on this machine.
    """
    if find_spec("ray") is None:
        raise TrainingError("--ray needs Ray: pip install 'slipstream[ray]'")
    import ray  # noqa: PLC0415 - an optional extra
    from ray.util import ActorPool  # noqa: PLC0415

    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(include_dashboard=False, log_to_driver=False)
    actors: list[Any] = []
    try:
        needs, count = _workers(run, ray.cluster_resources())
        kind = ray.remote(ShardWriter).options(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        portable, shared = _portable(run), ray.put(plan)
        actors += [kind.remote(portable, shared) for _ in range(min(count, len(numbers)))]
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


def _workers(run: DataRun, total: Mapping[str, float]) -> tuple[dict[str, int], int]:
    """Return what Ray reserves for a worker, and how many workers fit into a cluster."""
    if run.device not in ("cpu", "cuda"):
        raise TrainingError(f"the device is {run.device!r}, but Ray itself picks which: give cuda")
    needs = {"CPU": run.threads or 1, "GPU": int(run.device == "cuda")}
    count = int(min(total.get(name, 0) // need for name, need in needs.items() if need))
    if not count:
        raise TrainingError(f"no worker with {needs} fits into the Ray cluster")
    return needs, count


def _portable(run: DataRun) -> DataRun:
    """Return the run for processes that were started elsewhere."""
    target = Path(run.target).expanduser()
    name = str(target.absolute()) if target.exists() else run.target
    return replace(run, out=run.out.absolute(), target=name)
