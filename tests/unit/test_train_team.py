"""Several processes train as one does, step for step."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import tiny_training as tiny
from members import refuse
from slipstream.core.errors import TrainingError
from slipstream.models.glide_weights import read_tensors
from slipstream.train.config import Precision
from slipstream.train.launch import run_team

# Three documents in a batch: an uneven share for two members, and batches of one for the rest.
SETTINGS = replace(
    tiny.SETTINGS,
    schedule=replace(tiny.SETTINGS.schedule, steps=1),
    loss=replace(tiny.SETTINGS.loss, unroll=3, hard_weight=0.5),
    batch_tokens=36,
    precision=Precision.FLOAT32,
)


def momenta(run):
    """The first step's gradients, as the optimiser keeps them."""
    tensors = read_tensors(run.work / "checkpoint/optimizer.safetensors")
    return {name: value for name, value in tensors.items() if name.endswith("exp_avg")}


def test_two_processes_take_the_step_that_one_would(tmp_path):
    place = tiny.training_place(tmp_path)
    runs = [tiny.glide_run(place, tmp_path / name, settings=SETTINGS) for name in ("one", "two")]
    for size, run in enumerate(runs, start=1):
        run_team(partial(tiny.train_member, run=run), device="cpu", num_processes=size)
    alone, together = map(momenta, runs)
    assert any(value.abs().max() > 1e-4 for value in alone.values())
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-7)


def test_what_a_process_says_is_an_error_here():
    with pytest.raises(TrainingError, match=r"^one of 2 does not want to$"):
        run_team(refuse, device="cpu", num_processes=2)


@pytest.mark.parametrize(
    ("device", "reason"), [("cuda:0", "can't share cuda:0"), ("cuda", "need as many GPUs")]
)
def test_processes_without_a_gpu_each_are_refused(device, reason):
    with pytest.raises(TrainingError, match=reason):
        run_team(print, device=device, num_processes=99)
