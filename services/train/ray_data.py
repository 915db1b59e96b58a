"""Training data written by many processes at once: a Ray actor for each target, a task a shard.

The shards are those of one process, byte for byte; the directory must be one that all nodes see.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.train.data_run import DataRun, ShardPlan, Worker, Written
from slipstream.train.shards import Shard

_RESTARTS = 2
"""How often a worker that dies is started anew, and a shard that it held is tried again."""


@dataclass(frozen=True, slots=True)
class RaySpread:
    """Spread of shards over `num_workers`; None means one per GPU, or per CPU thread group.

    Joins the cluster that Ray's own settings name, or starts one on this machine.
    """

    num_workers: int | None = None

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            raise TrainingError("--ray needs Ray: pip install 'slipstream[ray]'")
        if self.num_workers is not None and self.num_workers < 1:
            raise TrainingError(f"ray_workers is {self.num_workers}, it must be at least 1")

    def __call__(
        self, run: DataRun, plan: ShardPlan, numbers: Sequence[int]
    ) -> Iterator[Written | None]:
        """Start the workers, wait until each has its target, and write."""
        import ray  # noqa: PLC0415 - an optional extra

        is_ours = not ray.is_initialized()
        if is_ours:
            ray.init(include_dashboard=False, log_to_driver=False)
        actors = _Actors(ray, is_ours)
        try:
            actors.start(_portable(run), plan, _needs(run), self.num_workers)
        except BaseException:
            actors.stop()
            raise
        return actors.write(numbers)


class RayWorker:
    """Ray actor with a `Worker` that is made when it is first needed.

    An actor that can't be built gives no reason; one that can't do its work does.
    """

    def __init__(self, run: DataRun, shards: tuple[Shard, ...]) -> None:
        self._args = (run, shards)
        self._worker: Worker | None = None

    def load(self) -> None:
        """Load the target."""
        self._worker = self._worker or Worker(*self._args)

    def write(self, number: int) -> Written | None:
        """See `Worker.write`; an actor that was started anew loads the target again."""
        self.load()
        return self._worker.write(number) if self._worker else None


class _Actors:
    """Actors of a run."""

    def __init__(self, ray: Any, is_ours: bool) -> None:
        """`is_ours`: whether Ray is to be shut down in the end."""
        self._ray = ray
        self._is_ours = is_ours
        self._actors: list[Any] = []

    def start(
        self, run: DataRun, plan: ShardPlan, needs: dict[str, int], num_workers: int | None
    ) -> None:
        """Start the actors. TrainingError for more than fit; raises what loading raises, too."""
        total = self._ray.cluster_resources()
        fitting = int(min(total.get(name, 0) // amount for name, amount in needs.items()))
        count = num_workers or fitting
        if not 1 <= count <= fitting:
            raise TrainingError(f"{count} workers do not fit into a Ray cluster of {fitting}")
        kind = self._ray.remote(RayWorker).options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        shards = self._ray.put(plan.shards)
        self._actors = [kind.remote(run, shards) for _ in range(count)]
        self._get([actor.load.remote() for actor in self._actors])

    def write(self, numbers: Sequence[int]) -> Iterator[Written | None]:
        """Yield shards, one per idle actor, until all are written or the caller stops."""
        waiting = iter(numbers)
        busy = {}
        try:
            for actor, number in zip(self._actors, waiting, strict=False):
                busy[actor.write.remote(number)] = actor
            while busy:
                (ready, *_), _ = self._ray.wait(list(busy), num_returns=1)
                actor = busy.pop(ready)
                yield self._get(ready)
                for number in islice(waiting, 1):
                    busy[actor.write.remote(number)] = actor
        finally:
            self.stop()

    def stop(self) -> None:
        """End the actors; what they have not finished leaves nothing behind."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()

    def _get(self, refs: Any) -> Any:
        try:
            return self._ray.get(refs)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SlipstreamError):
                raise error.cause from None  # without the trace of another process
            raise


def _needs(run: DataRun) -> dict[str, int]:
    """Return the resources that Ray reserves for a worker."""
    needs = {"CPU": run.num_threads or 1}
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
