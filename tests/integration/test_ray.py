"""Ray workers write what one process would; a real cluster on this machine."""

import json
import os
from pathlib import Path

import pytest

from support.commands import IMPORT_PATH, ran_python

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where `ray_jobs.py` has been."""
    place = tmp_path_factory.mktemp("ray")
    paths = os.pathsep.join([str(TESTS), IMPORT_PATH])
    done = ran_python(TESTS / "ray_jobs.py", place, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.fixture
def said(place):
    return json.loads((place / "said.json").read_text())


def test_ray_workers_write_the_shards_of_one_process(place, said):
    assert said["data"]["many"] == said["data"]["alone"] > 2
    alone, many = (
        {path.name: path.read_bytes() for path in (place / name).glob("shard-*.jsonl.gz")}
        for name in ("alone", "many")
    )
    assert many == alone


def test_workers_go_on_where_one_process_ended(said):
    assert said["data"]["first"] == 1


def test_a_worker_that_a_cluster_has_no_room_for_is_refused(said):
    assert said["data"]["wide"].startswith("TrainingError: no worker with {'CPU': 3")


def test_what_a_worker_refuses_is_refused_here_in_its_words(said):
    assert said["data"]["long"].startswith("InvalidRequest: ")
    assert "the context of target" in said["data"]["long"]
