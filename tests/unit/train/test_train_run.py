"""Whole training runs on a tiny target: weights that load, exact resume, clear refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.cli.main import exit_code
from slipstream.core.errors import ModelMismatch, TrainingError
from slipstream.models.glide.glide_config import read_config
from slipstream.models.glide.glide_files import load_weights, read_tensors
from slipstream.models.glide.glide_scorer import load_glide
from slipstream.models.loading import load_target_parts
from slipstream.models.scorer import Sync
from slipstream.train.config import TrainSchedule, TrainSettings
from slipstream.train.run import train_glide
from slipstream.train.trainer import TrainHooks
from support.models.tiny_training import CHECKED, SETTINGS, glide_run, hooks, train, training_place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return training_place(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def first(place, tmp_path_factory):
    """A run that has ended, for others to start from."""
    out = tmp_path_factory.mktemp("first")
    train(glide_run(place, out))
    return out


class Interrupted(Exception):
    pass


def interrupt(result):
    raise Interrupted


def provenance(out):
    return json.loads((out / "weights/provenance.json").read_text())


def test_a_run_leaves_weights_that_load_and_say_where_they_come_from(place, tmp_path):
    checks = train(glide_run(place, tmp_path, settings=CHECKED))
    target = load_target_parts(str(place / "target"))
    scorer = load_glide(tmp_path / "weights", target.model, tokenizer_hash=target.tokenizer_hash)
    scores = scorer.score([Sync(scorer.open(8), [1, 2, 3], None)])
    assert np.isfinite(scores.logits).all()
    assert 60 in scorer.vocab.tolist(), "the end of text is always in the head"
    assert scorer.max_lag == SETTINGS.loss.block_max
    record = provenance(tmp_path)
    assert record["command"] == "slipstream train glide"
    assert record["licence"] == "derived from target (none)"
    assert record["data"][0]["num_documents"] == 21
    assert record["data"][0]["num_tokens"] == 20 * 12 + 5
    assert any(check.is_best for check in checks)
    assert all(len(check.heldout.acceptance) == 7 for check in checks)
    assert len(record["heldout"]["acceptance"]) == 17
    assert record["heldout_length"] == max(check.heldout.length for check in checks)
    for name in ("loss.png", "acceptance.png"):
        assert (tmp_path / "work" / name).read_bytes().startswith(b"\x89PNG")


def test_a_resumed_run_ends_where_an_unbroken_one_does(place, tmp_path):
    loss = replace(SETTINGS.loss, acceptance_weight=0.5)
    settings = replace(CHECKED, loss=loss, ema=0.9, patience=50)
    train(glide_run(place, tmp_path / "whole", settings=settings))
    with pytest.raises(Interrupted):
        train(glide_run(place, tmp_path / "broken", settings=settings), interrupt)
    stopped_at = json.loads((tmp_path / "broken/work/checkpoint/state.json").read_text())["step"]
    assert 0 < stopped_at < 6
    train(glide_run(place, tmp_path / "broken", settings=settings, resume=True))
    for part in ("model", "average", "optimizer"):
        whole, broken = (
            (tmp_path / name / f"work/checkpoint/{part}.safetensors").read_bytes()
            for name in ("whole", "broken")
        )
        assert whole == broken


def test_the_averaged_weights_are_exported_and_the_others_trained_on(place, tmp_path):
    settings = replace(SETTINGS, schedule=TrainSchedule(steps=4), ema=0.99)
    train(glide_run(place, tmp_path, settings=settings))
    average, latest = (
        read_tensors(tmp_path / f"work/checkpoint/{name}.safetensors")
        for name in ("average", "model")
    )
    exported = load_weights(tmp_path / "weights")[0].state_dict()
    name = "layers.0.mlp.up_proj.weight"
    assert torch.equal(exported[name], average[name].bfloat16())
    assert not torch.equal(exported[name], latest[name].bfloat16())


def test_patience_ends_a_run_that_does_not_get_better(place, tmp_path):
    settings = replace(
        SETTINGS, schedule=TrainSchedule(steps=500, lr=1e-9), patience=2, export_minutes=0.025
    )
    checks = train(glide_run(place, tmp_path, settings=settings))
    assert [check.is_best for check in checks] == [True, False, False]
    record = json.loads((tmp_path / "work/checkpoint/state.json").read_text())
    assert record["step"] < 20


def test_a_draft_of_two_layers_trains_without_any_feature_on_disk(place, tmp_path):
    settings = replace(SETTINGS, schedule=TrainSchedule(steps=2))
    run = glide_run(
        place,
        tmp_path,
        settings=settings,
        num_layers=2,
        feature_gb=0.0,
        feature_dir=tmp_path / "features",
    )
    train(run)
    assert load_weights(run.out)[0].config.num_layers == 2
    assert not run.features.exists()


def test_training_lowers_the_loss(place, tmp_path):
    losses = []
    settings = TrainSettings(
        TrainSchedule(steps=40, lr=4e-3),
        SETTINGS.loss,
        batch_tokens=200,
        heldout=2,
        report_seconds=2.0,
        export_minutes=1e6,
    )
    look = TrainHooks(hooks().clock, lambda report: losses.append(report.loss), lambda check: None)
    train_glide(
        glide_run(place, tmp_path, settings=settings), look, feature_progress=lambda d, t: None
    )
    assert losses[-1] < losses[0] - 0.1


def test_training_can_start_from_earlier_weights_with_other_text(place, first, tmp_path):
    train(glide_run(place, tmp_path, init_from=first / "weights", head_size=20))
    assert read_config(tmp_path / "weights").head_size == 20
    records = [provenance(out) for out in (first, tmp_path)]
    assert records[0]["started_from"] is None
    assert records[1]["started_from"] == records[0]


def test_weights_to_start_from_keep_their_vocabulary_on_other_text(place, first, tmp_path):
    other, start = tmp_path / "other.jsonl", first / "weights"
    other.write_text("".join(f'{{"p": [{n}], "g": [{n}, 55]}}\n' for n in range(42, 52)))
    train(glide_run(place, tmp_path, data=(other,), feature_dir=tmp_path, init_from=start))
    assert torch.equal(load_weights(tmp_path / "weights")[1], load_weights(start)[1])


def test_weights_of_another_shape_are_no_start(place, first, tmp_path):
    run = glide_run(place, tmp_path, init_from=first / "weights", layers="2")
    with pytest.raises(ModelMismatch, match="another target or shape"):
        train(run)


def test_a_checkpoint_of_other_settings_is_not_taken_up(place, first):
    other = TrainSettings(SETTINGS.schedule, SETTINGS.loss, batch_tokens=50, heldout=2)
    with pytest.raises(TrainingError, match="other data or settings"):
        train(glide_run(place, first, settings=other, resume=True))


def test_features_are_computed_once(place, tmp_path):
    steps = []
    run = glide_run(place, tmp_path, feature_dir=tmp_path / "features")
    for _ in range(2):
        train_glide(run, hooks(), feature_progress=lambda done, total: steps.append((done, total)))
    assert steps == [(245, 245)]


def test_exported_weights_are_those_of_the_best_check(place, tmp_path):
    best = {}

    def remember(result):
        if result.is_best:
            best["tensors"] = load_weights(tmp_path / "weights")[0].state_dict()

    train(glide_run(place, tmp_path, settings=CHECKED), remember)
    last = load_weights(tmp_path / "weights")[0].state_dict()
    assert all(torch.equal(value, best["tensors"][name]) for name, value in last.items())


def command(place, out, *more):
    base = ["train", "glide", "--target", str(place / "target"), "--out", str(out / "w")]
    base += ["--data", str(place / "data.jsonl"), "--feature-dir", str(place / "features")]
    return exit_code([*base, *more])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "either a number of steps or of minutes"),
        (["--steps", "2", "--layers", "1,x"], "layers must be numbers"),
        (["--steps", "2", "--layers", ","], "layers must be numbers"),
        (["--steps", "2", "--layers", "9"], "do not exist"),
        (["--steps", "2", "--layers", "1", "--no-cross"], "reads no layers"),
        (["--steps", "2", "--precision", "int8"], "int8"),
        (["--steps", "2", "--acceptance-weight", "-1"], "acceptance_weight is -1.0"),
        (["--steps", "2", "--feature-gb", "-1"], "must not be negative"),
        (["--steps", "2", "--num-layers", "0"], "num_layers is 0"),
        (["--steps", "2", "--block-min", "5", "--block-max", "2"], "min <= max"),
        (["--steps", "2", "--heldout", "2", "--resume"], "no checkpoint"),
        (["--steps", "2", "--data", "missing.jsonl"], "missing.jsonl"),
        (["--steps", "2", "--target", "no-such-model"], "no-such-model"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(place, tmp_path, capsys, options, reason):
    assert command(place, tmp_path, *options) == 2
    sentence = capsys.readouterr().err.strip()
    assert reason in sentence
    assert len(sentence.splitlines()) == 1


def test_the_command_trains_and_reports_its_checks(place, tmp_path, capsys):
    options = ["--steps", "2", "--layers", "1,3", "--head-size", "30", "--batch-tokens", "40"]
    threads = ["--threads", str(torch.get_num_threads())]
    with pytest.raises(TrainingError, match="too few to hold 60 out"):
        train(glide_run(place, tmp_path, settings=TrainSettings(TrainSchedule(steps=2))))
    assert command(place, tmp_path, *options, *threads, "--heldout", "2") == 0
    assert "acceptance by lag" in capsys.readouterr().out
    assert read_config(tmp_path / "w").target_layers == (1, 3)


def test_a_draft_without_cross_attention_is_as_good_at_every_lag(place, tmp_path, capsys):
    options = ["--steps", "2", "--no-cross", "--head-size", "30", "--heldout", "2"]
    assert command(place, tmp_path, *options) == 0
    words = [str(tmp_path / "w"), "--target", str(place / "target"), "--out", str(tmp_path / "hf")]
    assert exit_code(["train", "export-hf", *words]) == 0
    assert "acceptance by lag" in capsys.readouterr().out
    model, _ = load_weights(tmp_path / "w")
    assert (model.config.target_layers, model.config.max_lag) == ((), 0)
    assert not any(".cross." in name for name in model.state_dict())
    (history,) = json.loads((tmp_path / "w/provenance.json").read_text())["checks"]
    rates = {rate for name, rate in history.items() if name.startswith("lag_")}
    assert len(rates) == 1, "what is not read can't lag"
    assert load_target_parts(str(tmp_path / "hf")).model.config.num_hidden_layers == 1
