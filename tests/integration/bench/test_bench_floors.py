"""`bench floors`, on a CPU and on a GPU."""

import json

import pytest
import torch

from slipstream.bench.floors import measure_floors
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest
from support.models import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    tiny_checkpoint.save_checkpoint(target, context_length=2048)
    return str(target)


def test_steps_are_timed_by_rows_and_sessions(folder, tmp_path):
    out = tmp_path / "floors.json"
    words = ("--shape", folder, "--device", "cpu", "--dtype", "float32", "--json", str(out))
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
def test_floors_are_measured_on_a_device(folder):
    found = measure_floors(folder, dtype="float32", device="cuda", numerics="fast")
    assert found["engine"] == "cuda"
    assert found["accounted"]["workspace"] > torch.cuda.mem_get_info()[1] // 16
