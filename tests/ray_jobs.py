"""What Ray does for training, in a process of its own: python ray_jobs.py DIRECTORY.

Ray runs threads and children that a process full of other tests had better not have. What
happened is left in DIRECTORY/said.json.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipstream.core.errors import SlipstreamError
from slipstream.train.data_run import DataHooks, DataRun, write_data
from slipstream.train.group import run_ray_group
from slipstream.train.ray_data import RaySpread
from slipstream.train.shards import DataSettings
from slipstream.train.sources import SourceSettings
from support.models.tiny_training import training_place
from support.services.members import count_and_refuse

SETTINGS = DataSettings(
    temperatures=((0.0, 1.0), (1.0, 1.0)),
    max_new_tokens=8,
    batch=5,
    sources=SourceSettings(max_prompt_tokens=80, passage_tokens=10),
)
_STARTS = 3
_LIGHT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Ray Train without the actors that watch it, each of which is a process more; and workers that
other tests do not keep waiting."""


@contextmanager
def cluster() -> Iterator[None]:
    """Two processors of this machine. A busy one may be too slow for Ray's own patience."""
    import ray

    for left in reversed(range(_STARTS)):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            break
        except Exception:
            ray.shutdown()
            if not left:
                raise
    try:
        yield
    finally:
        ray.shutdown()


def write(run: DataRun, **options) -> int:
    ticks = itertools.count()
    hooks = DataHooks(lambda: float(next(ticks)), lambda plan: None, lambda report: None)
    return write_data(run, hooks, **options).num_done


def said_by(action) -> str:
    try:
        action()
    except SlipstreamError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def spread_data(place: Path) -> dict[str, object]:
    """Shards of one process, and of workers that go on with some of them."""
    files = (place / "data.jsonl",)
    runs = {
        name: DataRun(str(place / "target"), files, place / name, SETTINGS)
        for name in ("alone", "many", "wide", "long")
    }
    long = replace(runs["long"], settings=replace(SETTINGS, max_new_tokens=100))
    return {
        "alone": write(runs["alone"]),
        "first": write(replace(runs["many"], max_tokens=1)),
        "many": write(runs["many"], spread=RaySpread(2)),
        "wide": said_by(lambda: write(runs["wide"], spread=RaySpread(3))),
        "long": said_by(lambda: write(long, spread=RaySpread(1))),
    }


def group(place: Path) -> dict[str, str]:
    """Two members of Ray Train that add up what they have, and then refuse."""
    work = partial(count_and_refuse, path=place / "told")
    train = partial(run_ray_group, num_workers=2, has_gpus=False, directory=place / "ray")
    error = said_by(lambda: train(work))
    return {"error": error, "told": (place / "told").read_text()}


def main(place: Path) -> None:
    """See the module."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers find what this process finds
    os.environ |= _LIGHT
    training_place(place)
    with cluster():
        said = {"data": spread_data(place), "group": group(place)}
    (place / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
