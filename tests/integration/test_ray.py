"""Ray workers write what one process would; a real cluster on this machine.

Ray runs threads and children that a process full of other tests had better not have. So this file
is the program of a process as well: python test_ray.py DIRECTORY.
"""

import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from slipstream.core.errors import SlipstreamError
from slipstream.train.data_run import DataRun, make_plan, write_data
from slipstream.train.ray_data import write_on_ray
from support.commands import IMPORT_PATH, ran_python
from support.models.tiny_training import training_place

TESTS = Path(__file__).parents[1]
_STARTS = 3


def test_ray_workers_write_the_shards_of_one_process_and_go_on_where_it_ended(tmp_path):
    paths = os.pathsep.join([str(TESTS), IMPORT_PATH])
    done = ran_python(__file__, tmp_path, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["many"] == said["alone"] > 2
    alone, many = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("shard-*.jsonl.gz")}
        for name in ("alone", "many")
    )
    assert many == alone
    assert said["first"] == 1
    assert said["wide"].startswith("TrainingError: no worker with {'CPU': 3")
    assert said["long"].startswith("InvalidRequest: "), "a worker's refusal, in its words"
    assert "the context of target" in said["long"]


def write(run: DataRun, **options) -> int:
    ticks, plan = itertools.count(), make_plan(run)
    clock = {"clock": lambda: float(next(ticks)), "report": lambda report: None}
    return write_data(run, plan, **clock, **options)


def said_by(run: DataRun) -> str:
    try:
        write(run, spread=write_on_ray)
    except SlipstreamError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def start_cluster() -> None:
    """Two processors of this machine. A busy one may be too slow for Ray's own patience."""
    import ray

    for left in reversed(range(_STARTS)):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise


def main(place: Path) -> None:
    """Write shards in one process, and in workers that go on with some of them."""
    import ray

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers find what this process finds
    os.environ |= {"RAY_worker_niceness": "0"}  # other tests do not keep workers waiting
    training_place(place)
    sizes = {"temperatures": "0,1", "max_new_tokens": 8, "batch": 5, "max_prompt_tokens": 80}
    files = {"target": str(place / "target"), "prompts": (place / "data.jsonl",)}
    alone = DataRun(out=place / "alone", **files, **sizes)
    many = replace(alone, out=place / "many")
    start_cluster()
    try:
        said = {
            "alone": write(alone),
            "first": write(replace(many, max_tokens=1)),
            "many": write(many, spread=write_on_ray),
            "wide": said_by(replace(alone, out=place / "wide", threads=3)),
            "long": said_by(replace(alone, out=place / "long", max_new_tokens=100, threads=2)),
        }
    finally:
        ray.shutdown()
    (place / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
