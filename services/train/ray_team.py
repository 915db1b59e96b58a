"""A team whose members are Ray Train workers. Knows nothing of what they do."""

from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.train.launch import Work
from slipstream.train.parallel import Team


def run_ray_team(work: Work, *, num_workers: int, has_gpus: bool, directory: Path) -> None:
    """Run `work` in `num_workers` Ray workers, with a GPU each or on CPUs.

    Joins the cluster that Ray's own settings name, or starts one on this machine; all nodes must
    see the paths that `work` uses and `directory`, where Ray keeps its records. A
    `SlipstreamError` of a worker is raised here as a `TrainingError` that says the same.
    """
    if find_spec("ray") is None:
        raise TrainingError("--ray needs Ray: pip install 'slipstream[ray]'")
    # An optional extra, hence here.
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    def member() -> None:
        from ray.train.torch import get_device  # noqa: PLC0415

        work(Team(dist.get_rank(), dist.get_world_size(), get_device()))

    trainer = TorchTrainer(
        member,
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=has_gpus),
        run_config=RunConfig(name="glide", storage_path=str(directory.absolute())),
    )
    try:
        trainer.fit()
    except Exception as error:
        raise _own(error) or error from None


def _own(error: BaseException) -> TrainingError | None:
    """What a worker of ours said, somewhere in what Ray makes of it."""
    failures = getattr(error, "worker_failures", {}).values()
    for inner in (*failures, error.__cause__):
        if isinstance(inner, SlipstreamError):
            return TrainingError(str(inner))
        found = None if inner is None else _own(inner)
        if found:
            return found
    return None
