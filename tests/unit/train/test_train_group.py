"""Several processes train as one does, step for step."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from slipstream.core.errors import TrainingError
from slipstream.models.glide.glide_files import read_tensors
from slipstream.train.config import Precision
from slipstream.train.group import run_group
from support.models import tiny_training as tiny
from support.services.members import train_and_refuse

# Three documents in a batch: an uneven share for two members, and batches of one for the rest.
SETTINGS = replace(
    tiny.SETTINGS,
    schedule=replace(tiny.SETTINGS.schedule, steps=1),
    loss=replace(tiny.SETTINGS.loss, acceptance_weight=0.5),
    batch_tokens=36,
    precision=Precision.FLOAT32,
)


def momenta(run):
    """The first step's gradients, as the optimiser keeps them."""
    tensors = read_tensors(run.work / "checkpoint/optimizer.safetensors")
    return {name: value for name, value in tensors.items() if name.endswith("exp_avg")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run by one process and by two, and what the latter failed with in the end."""
    base = tmp_path_factory.mktemp("group")
    place = tiny.training_place(base)
    alone, together = (
        tiny.glide_run(place, base / name, settings=SETTINGS) for name in ("one", "two")
    )
    run_group(partial(tiny.train_member, run=alone), device="cpu", num_processes=1)
    with pytest.raises(TrainingError) as failed:
        run_group(partial(train_and_refuse, run=together), device="cpu", num_processes=2)
    return alone, together, failed.value


def test_two_processes_take_the_step_that_one_would(runs):
    alone, together = map(momenta, runs[:2])
    assert any(value.abs().max() > 1e-4 for value in alone.values())
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-7)


def test_what_a_process_says_is_an_error_here(runs):
    assert str(runs[2]) == "one of 2 does not want to"


@pytest.mark.parametrize(
    ("device", "reason"), [("cuda:0", "can't share cuda:0"), ("cuda", "need as many GPUs")]
)
def test_processes_without_a_gpu_each_are_refused(device, reason):
    with pytest.raises(TrainingError, match=reason):
        run_group(print, device=device, num_processes=99)
