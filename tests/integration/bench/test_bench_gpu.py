"""The first hour on a GPU, tried without one: every step yields figures or a reason."""

import json

import pytest
import torch

from slipstream.bench.gpu.floors import measure_floors
from slipstream.bench.gpu.graph_checks import check_graphs
from slipstream.bench.gpu.steps import GpuStep, Outcome, found_faults, run_steps
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest
from support.models import tiny_checkpoint
from support.models.hand_clock import HandClock

STEPS = ["graphs", "speed", "speed at temperature 1", "floors", "cost", "serve"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    target, draft = (tmp_path_factory.mktemp(role) for role in ("target", "draft"))
    tiny_checkpoint.save_checkpoint(target, context_length=2048)
    return str(target), str(tiny_checkpoint.save_draft(target, draft))


def test_one_command_runs_every_step_and_writes_figures(folders, tmp_path, capsys):
    target, draft = folders
    place = ("--target", target, "--draft", draft, "--dtype", "float32", "--shape", target)
    sizes = ("--limit", "1", "--max-new-tokens", "4", "--minutes", "8")
    assert exit_code(("bench", "gpu", *place, *sizes, "--out", str(tmp_path))) == 0
    values = json.loads((tmp_path / "results.json").read_text())
    assert [(at["name"], at["outcome"]) for at in values["steps"]] == [
        (name, "passed") for name in STEPS
    ]
    steps = {at["name"]: at["figures"] for at in values["steps"]}
    assert all(at["is_equal"] for at in steps["graphs"]["forwards"])
    assert set(steps["floors"]["rows_ms"]) >= {"1", "256"}
    assert steps["speed"]["methods"]["best"]["overall"]["identity"] != "different"
    assert "passed" in capsys.readouterr().out


def test_a_step_that_fails_is_reported_and_the_rest_runs(tmp_path):
    steps = [
        GpuStep("too long", ("bench", "cost"), 0.2),
        GpuStep("refused", ("bench", "cost", "--rows", "2,1"), 60),
    ]
    late, refused = run_steps(steps, tmp_path, seconds=100, clock=lambda: 0.0)
    assert [result.outcome for result in (late, refused)] == [Outcome.FAILED] * 2
    assert late.reason == "it took more than 0 s"
    assert "exit code 2: error: rows are [2, 1], but must ascend from 1" in refused.reason


def test_steps_for_which_no_time_is_left_are_not_run(tmp_path):
    clock = HandClock()
    steps = [GpuStep("any", ("bench", "cost"), 60)] * 2
    found = []
    for result in run_steps(steps, tmp_path, seconds=4, clock=clock):
        found.append((result.outcome, result.reason))
    assert found == [(Outcome.NOT_RUN, "no time was left")] * 2


@pytest.mark.parametrize(
    ("figures", "num"),
    [
        ({"graphs": [{"is_equal": True}, {"is_equal": False}]}, 1),
        ({"a": {"identity": "different", "identity_promised": True}}, 1),
        ({"a": {"identity": "different", "identity_promised": False}}, 0),
        ({"identity": {"identical": 3, "outputs": 4, "expected": True}}, 1),
        ({"identity": {"identical": 4, "outputs": 4, "expected": True}}, 0),
        ({"identity": {"identical": 3, "outputs": 4, "expected": False}}, 0),
    ],
)
def test_figures_that_must_be_the_same_and_are_not_fail_a_step(figures, num):
    assert len(list(found_faults(figures))) == num


def test_an_unknown_shape_is_refused():
    with pytest.raises(InvalidRequest, match="the shape is 'abacus', but must be llama-3-8b"):
        measure_floors("abacus", dtype="auto", device="cpu", numerics="fast")


def test_steps_of_a_model_that_is_not_at_hand_are_not_run(folders, tmp_path):
    place = ("--target", "no/such-model", "--shape", folders[0], "--dtype", "float32")
    assert exit_code(("bench", "gpu", *place, "--out", str(tmp_path))) == 0
    values = json.loads((tmp_path / "results.json").read_text())
    outcomes = {at["name"]: at["outcome"] for at in values["steps"]}
    assert outcomes == {**dict.fromkeys(STEPS, "not run"), "floors": "passed"}
    assert "is not on this machine" in values["steps"][0]["reason"]


def test_a_device_that_is_not_there_is_refused(capsys):
    if not torch.cuda.is_available():
        assert exit_code(("bench", "gpu", "--device", "cuda")) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.gpu
def test_graphs_and_chains_of_a_device_are_compared_and_never_wait(folders):
    found = check_graphs(*folders, dtype="float32", device="cuda")
    for graphs in (found["graphs"], found["chains"]["graphs"]):
        assert graphs
        assert all(at["is_equal"] for at in graphs)
    assert found["waits"]["bodies"] == len(found["graphs"])
    assert found["chains"]["as_the_host"] == found["chains"]["proposals"]
    assert not list(found_faults(found))


@pytest.mark.gpu
def test_floors_are_measured_on_a_device(folders):
    found = measure_floors(folders[0], dtype="float32", device="cuda", numerics="fast")
    assert found["engine"] == "cuda"
    assert found["accounted"]["workspace"] > torch.cuda.mem_get_info()[1] // 16
