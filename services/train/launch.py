"""Starts the members of a team: this process alone, local processes, or those of torchrun.

Knows nothing of what they do. The environment that torchrun sets is read by torch itself.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.models.loading import parse_device
from slipstream.train.parallel import Team

Work = Callable[[Team], None]
"""What each member does; it must survive pickling where processes are started."""

_WAIT = timedelta(hours=12)
"""How long members wait for each other: the others wait while the lead computes features."""


def run_team(work: Work, *, device: str, num_processes: int) -> None:
    """Run `work` in every member and return when all have done.

    On CUDA each member has a GPU of its own. A `SlipstreamError` of a member is raised here as a
    `TrainingError` that says the same.
    """
    if dist.is_torchelastic_launched():
        if num_processes > 1:
            raise TrainingError("torchrun has started the processes already: drop --nproc")
        dist.init_process_group(_backend(device), timeout=_WAIT)
        _as_member(work, device, dist.get_node_local_rank())
    elif num_processes == 1:
        work(Team(device=parse_device(device)))
    else:
        _check_devices(device, num_processes)
        _spawn(work, device, num_processes)


def _spawn(work: Work, device: str, size: int) -> None:
    with TemporaryDirectory() as place:
        try:
            spawn(_member, (work, device, size, Path(place)), nprocs=size)
        except ProcessException:
            for path in sorted(Path(place).glob("error-*")):
                raise TrainingError(path.read_text(encoding="utf-8")) from None
            raise


def _member(rank: int, work: Work, device: str, size: int, place: Path) -> None:
    """The life of a local process."""
    meeting = f"file://{place}/meeting"
    try:
        dist.init_process_group(
            _backend(device), init_method=meeting, rank=rank, world_size=size, timeout=_WAIT
        )
        _as_member(work, device, rank)
    except SlipstreamError as error:
        (place / f"error-{rank}").write_text(str(error), encoding="utf-8")
        raise


def _as_member(work: Work, device: str, local_rank: int) -> None:
    """Within a process group: work, then leave it."""
    own = parse_device(f"cuda:{local_rank}" if device == "cuda" else device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        work(Team(dist.get_rank(), dist.get_world_size(), own))
    finally:
        dist.destroy_process_group()


def _backend(device: str) -> str:
    return "nccl" if device.startswith("cuda") else "gloo"


def _check_devices(device: str, num_processes: int) -> None:
    if re.fullmatch(r"cuda:\d+", device):
        raise TrainingError(f"{num_processes} processes can't share {device}: give --device cuda")
    if device == "cuda" and torch.cuda.device_count() < num_processes:
        raise TrainingError(
            f"{num_processes} processes need as many GPUs, but {torch.cuda.device_count()} are here"
        )
