"""What Ray does for training, in a process of its own: python ray_jobs.py DIRECTORY.
Ray runs threads and children that a process full of other tests had better not have. What
happened is left in DIRECTORY/said.json."""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipstream.core.errors import SlipstreamError
from slipstream.train.data_run import DataRun, make_plan, write_data
from slipstream.train.ray_data import write_on_ray
from support.models.tiny_training import training_place

_STARTS = 3


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
    ticks, plan = itertools.count(), make_plan(run)
    return write_data(
        run, plan, clock=lambda: float(next(ticks)), report=lambda report: None, **options
    )


def said_by(action) -> str:
    try:
        action()
    except SlipstreamError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def spread_data(place: Path) -> dict[str, object]:
    """Shards of one process, and of workers that go on with some of them."""
    sizes = {"temperatures": "0,1", "max_new_tokens": 8, "batch": 5, "max_prompt_tokens": 80}
    files = {"target": str(place / "target"), "prompts": (place / "data.jsonl",)}
    runs = {
        name: DataRun(out=place / name, **files, **sizes)
        for name in ("alone", "many", "wide", "long")
    }
    long = replace(runs["long"], max_new_tokens=100)
    return {
        "alone": write(runs["alone"]),
        "first": write(replace(runs["many"], max_tokens=1)),
        "many": write(runs["many"], spread=write_on_ray),
        "wide": said_by(lambda: write(replace(runs["wide"], threads=3), spread=write_on_ray)),
        "long": said_by(lambda: write(long, spread=write_on_ray)),
    }


def main(place: Path) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers find what this process finds
    os.environ |= {"RAY_worker_niceness": "0"}  # other tests do not keep workers waiting
    training_place(place)
    with cluster():
        said = {"data": spread_data(place)}
    (place / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
