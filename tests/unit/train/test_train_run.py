"""Whole training runs on a tiny target: weights that load, clear refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from slipstream.cli.main import exit_code
from slipstream.core.errors import ModelMismatch, TrainingError
from slipstream.models.eagle.eagle_weights import read_layers
from slipstream.models.glide.glide_config import read_config
from slipstream.models.glide.glide_files import load_weights
from slipstream.models.glide.load import load_glide, target_parts
from slipstream.models.scorer import Sync
from slipstream.models.torch.loading import load_target_parts
from slipstream.train.config import TrainSchedule, TrainSettings
from slipstream.train.run import train_draft
from slipstream.train.trainer import TrainHooks
from support.commands import ran_python, refusal
from support.models.tiny_training import (
    CHECKED,
    LOSS,
    SETTINGS,
    eagle_run,
    glide_run,
    hooks,
    train,
    training_place,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return training_place(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def first(place, tmp_path_factory):
    """A run that has ended, for others to start from."""
    out = tmp_path_factory.mktemp("first")
    train(glide_run(place, out))
    return out


def provenance(out):
    return json.loads((out / "weights/provenance.json").read_text())


def test_a_run_leaves_weights_that_load_and_say_where_they_come_from(place, tmp_path):
    checks = train(glide_run(place, tmp_path, settings=CHECKED))
    target = load_target_parts(str(place / "target"))
    parts = target_parts(target.model, tokenizer_hash=target.tokenizer_hash)
    scorer = load_glide(tmp_path / "weights", parts)
    assert np.isfinite(scorer.score([Sync(scorer.open(8), [1, 2, 3], None)]).logits).all()
    assert 60 in scorer.vocab.tolist(), "the end of text is always in the head"
    assert scorer.max_lag == LOSS.block_max
    record = provenance(tmp_path)
    assert record["command"] == "slipstream train glide"
    assert record["licence"] == "derived from target (none)"
    assert [record["data"][0][f"num_{kind}"] for kind in ("documents", "tokens")] == [
        21,
        20 * 12 + 5,
    ]
    assert any(check.is_best for check in checks)
    assert all(len(check.heldout.acceptance) == 7 for check in checks)
    assert max(at["length"] for at in record["checks"]) == max(at.heldout.length for at in checks)


def step_of(run):
    with safe_open(run.checkpoint, "pt") as file:
        return json.loads(file.metadata()["state"])["step"]


@pytest.mark.parametrize("kind_run", [glide_run, eagle_run])
def test_a_resumed_run_ends_where_an_unbroken_one_does(place, tmp_path, kind_run):
    def interrupt(check):
        if check.step > 1:
            raise KeyboardInterrupt

    whole, broken = (kind_run(place, tmp_path / name, settings=CHECKED) for name in "ab")
    train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(broken, interrupt)
    assert 0 < step_of(broken) < 6
    train(replace(broken, resume=True))
    assert step_of(broken) == step_of(whole) == 6
    ends = [load_file(run.checkpoint) for run in (whole, broken)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    with pytest.raises(TrainingError, match="of another run: --resume it"):
        train(broken)
    other = training_place(tmp_path / "other", initializer_range=0.2) / "target"
    drafts = [replace(broken.draft, **own) for own in ({"head_size": 20}, {"target": str(other)})]
    settings = {"settings": replace(SETTINGS, batch_tokens=50)}
    for changes in (settings, *({"draft": draft} for draft in drafts)):
        with pytest.raises(TrainingError, match="other data or settings"):
            train(replace(broken, **changes, resume=True))
    with pytest.raises(TrainingError, match="no checkpoint to resume from"):
        train(kind_run(place, tmp_path / "none", resume=True))


@pytest.mark.parametrize("kind_run", [glide_run, eagle_run])
def test_training_lowers_the_loss(tmp_path, kind_run):
    losses, place = [], training_place(tmp_path, initializer_range=0.2)
    often = {"report_seconds": 2.0, "export_minutes": 1e6}
    settings = TrainSettings(TrainSchedule(steps=40, lr=4e-3), batch_tokens=200, heldout=2, **often)
    look = TrainHooks(hooks().clock, lambda report: losses.append(report.loss), lambda check: None)
    train_draft(kind_run(place, tmp_path, settings=settings), look)
    assert losses[-1] < losses[0] - 0.1


def test_training_can_start_from_earlier_weights_of_its_shape_with_other_text(
    place, first, tmp_path
):
    train(glide_run(place, tmp_path, init_from=first / "weights", head_size=20))
    assert read_config(tmp_path / "weights").head_size == 20
    records = [provenance(out) for out in (first, tmp_path)]
    assert records[0]["started_from"] is None
    assert records[1]["started_from"] == records[0]
    with pytest.raises(ModelMismatch, match="another target or shape"):
        train(glide_run(place, tmp_path / "2", init_from=first / "weights", layers="2"))


def test_weights_to_start_from_keep_their_vocabulary_on_other_text(place, first, tmp_path):
    other, start = tmp_path / "other.jsonl", first / "weights"
    other.write_text("".join(f'{{"p": [{n}], "g": [{n}, 55]}}\n' for n in range(42, 52)))
    train(glide_run(place, tmp_path, data=(other,), init_from=start))
    assert torch.equal(load_weights(tmp_path / "weights")[1], load_weights(start)[1])


def test_exported_weights_are_those_of_the_best_check(place, tmp_path):
    best = {}

    def remember(result):
        if result.is_best:
            best["tensors"] = load_weights(tmp_path / "weights")[0].state_dict()

    train(glide_run(place, tmp_path, settings=CHECKED), remember)
    last = load_weights(tmp_path / "weights")[0].state_dict()
    assert all(torch.equal(value, best["tensors"][name]) for name, value in last.items())


def words(place, out, *more, kind="glide"):
    base = ["train", kind, "--target", str(place / "target"), "--out", str(out / "w")]
    return [*base, "--data", str(place / "data.jsonl"), *more]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "either a number of steps or of minutes"),
        (["--steps", "2", "--layers", "1,x"], "layers is '1,x'"),
        (["--steps", "2", "--layers", "9"], "do not exist"),
        (["--steps", "2", "--num-layers", "5"], "num_layers is 5, the target has 4"),
        (["--steps", "2", "--lr", "inf"], "lr is inf, but must be a finite number"),
        (["--steps", "2", "--heldout", "2", "--out", "/dev/null"], "/dev/null can't be written"),
        (["--steps", "2", "--device", "cuda:99"], "cuda:99"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(place, tmp_path, capsys, options, reason):
    assert reason in refusal(capsys, *words(place, tmp_path, *options))


def test_the_command_trains_and_reports_its_checks(place, tmp_path, capsys):
    options = ["--steps", "2", "--layers", "1,3", "--head-size", "30", "--batch-tokens", "40"]
    threads = ["--threads", str(torch.get_num_threads())]
    with pytest.raises(TrainingError, match="too few to hold 60 out"):
        train(glide_run(place, tmp_path, settings=TrainSettings(TrainSchedule(steps=2))))
    assert exit_code(words(place, tmp_path, *options, *threads, "--heldout", "2")) == 0
    assert "acceptance by lag" in capsys.readouterr().out
    assert read_config(tmp_path / "w").target_layers == (1, 3)
    more = ["--steps", "1", "--layers", "0,2", "--head-size", "30", "--heldout", "2"]
    assert exit_code(words(place, tmp_path / "e", *more, kind="eagle3")) == 0
    assert read_layers(tmp_path / "e/w", 4) == (0, 2)


# Three documents in a batch: an uneven share for two members, and batches of one for the rest.
OPTIONS = ("--steps", "2", "--block-max", "4", "--acceptance-weight", "0.5", "--heldout", "2")
SIZES = ("--batch-tokens", "36", "--precision", "float32", "--layers", "1,3", "--head-size", "30")
LAUNCHED = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_processes_of_torchrun_take_the_steps_that_one_would(place, tmp_path):
    weights = []
    for launcher, rate in (((), "1e-9"), ((), "0.05"), (LAUNCHED, "0.05")):
        out = tmp_path / str(len(weights))
        line = words(place, out, *OPTIONS, *SIZES, "--lr", rate)
        if launcher:
            done = ran_python(*launcher, "-m", "slipstream.cli.main", *line)
            assert done.returncode == 0, done.stderr[-3000:]
            assert done.stdout.count("acceptance by lag") == 1, "only the lead prints"
        else:
            assert exit_code(line) == 0
        weights.append(load_weights(out / "w")[0].state_dict())
    start, alone, together = weights
    assert all((alone[name] - value).abs().max() > 0.01 for name, value in start.items())
    torch.testing.assert_close(together, alone, rtol=0.01, atol=1e-3)
