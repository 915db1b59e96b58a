"""`bench graphs` and `bench floors`, on a CPU and on a GPU."""

import json

import pytest
import torch

from slipstream.bench.gpu.floors import measure_floors
from slipstream.bench.gpu.graph_checks import check_graphs, faults
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest
from support.models import tiny_checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    target, draft = (tmp_path_factory.mktemp(role) for role in ("target", "draft"))
    tiny_checkpoint.save_checkpoint(target, context_length=2048)
    return str(target), str(tiny_checkpoint.save_draft(target, draft))


def place_of(folders, *words):
    return ("--target", folders[0], "--draft", folders[1], "--dtype", "float32", *words)


def test_forwards_are_compared_and_a_fault_is_the_exit_code(folders, tmp_path, monkeypatch, capsys):
    out = tmp_path / "graphs.json"
    words = ("bench", "graphs", *place_of(folders, "--json", str(out)))
    assert exit_code(words) == 0
    forwards = json.loads(out.read_text())["graphs"]["forwards"]
    assert forwards
    assert all(of["is_equal"] for of in forwards)
    broken = {"forwards": [{"is_equal": False}], "graphs": [], "chains": None}
    monkeypatch.setattr("slipstream.cli.bench_gpu.check_graphs", lambda *_, **__: broken)
    assert exit_code(words) == 1
    assert "1 differ of 1 forwards" in capsys.readouterr().out


def test_steps_are_timed_by_rows_and_sessions(folders, tmp_path):
    out = tmp_path / "floors.json"
    words = ("--shape", folders[0], "--device", "cpu", "--dtype", "float32", "--json", str(out))
    assert exit_code(("bench", "floors", *words)) == 0
    found = json.loads(out.read_text())["floors"]
    assert set(found["rows_ms"]) >= {"1", "256"}
    assert found["plain_ms"] > 0


def test_an_unknown_shape_is_refused():
    with pytest.raises(InvalidRequest, match="the shape is 'abacus', but must be llama-3-8b"):
        measure_floors("abacus", dtype="auto", device="cpu", numerics="fast")


def test_a_device_that_is_not_there_is_refused(capsys):
    if not torch.cuda.is_available():
        assert exit_code(("bench", "floors", "--device", "cuda")) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.gpu
def test_graphs_and_chains_of_a_device_are_compared_and_never_wait(folders):
    found = check_graphs(*folders, dtype="float32", device="cuda")
    for graphs in (found["graphs"], found["chains"]["graphs"]):
        assert graphs
        assert all(at["is_equal"] for at in graphs)
    assert found["waits"]["bodies"] == len(found["graphs"])
    assert found["chains"]["as_the_host"] == found["chains"]["proposals"]
    assert not list(faults(found))


@pytest.mark.gpu
def test_floors_are_measured_on_a_device(folders):
    found = measure_floors(folders[0], dtype="float32", device="cuda", numerics="fast")
    assert found["engine"] == "cuda"
    assert found["accounted"]["workspace"] > torch.cuda.mem_get_info()[1] // 16
