"""Several processes train as one does, step for step."""

import os
import sys
from pathlib import Path

import pytest
import torch

from slipstream.models.glide.glide_files import load_weights
from support.commands import IMPORT_PATH, ran
from support.models import tiny_training as tiny

TESTS = Path(__file__).parents[2]
# Three documents in a batch: an uneven share for two members, and batches of one for the rest.
OPTIONS = ("--steps", "2", "--block-max", "4", "--acceptance-weight", "0.5", "--heldout", "2")
SIZES = ("--batch-tokens", "36", "--precision", "float32", "--layers", "1,3", "--head-size", "30")
LAUNCHED = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_processes_of_torchrun_take_the_steps_that_one_would(tmp_path):
    place = tiny.training_place(tmp_path)
    paths = os.pathsep.join([str(TESTS), IMPORT_PATH])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    weights = []
    for launcher, rate in (((), "1e-9"), ((), "0.05"), (LAUNCHED, "0.05")):
        out = place / f"out{len(weights)}"
        files = ("--data", place / "data.jsonl", "--out", out, "--lr", rate)
        words = ("train", "glide", "--target", place / "target", *files, *OPTIONS, *SIZES)
        done = ran(sys.executable, *launcher, "-m", "slipstream.cli.main", *words, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("acceptance by lag") == 1, "only the lead prints"
        weights.append(load_weights(out)[0].state_dict())
    start, alone, together = weights
    assert all((alone[name] - value).abs().max() > 0.01 for name, value in start.items())
    torch.testing.assert_close(together, alone, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("device", ["tpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device, tmp_path, capsys):
    from slipstream.cli.main import exit_code

    words = ["--target", "x", "--data", "x", "--out", str(tmp_path / "w"), "--steps", "1"]
    assert exit_code(["train", "glide", *words, "--device", device]) == 2
    assert device in capsys.readouterr().err
