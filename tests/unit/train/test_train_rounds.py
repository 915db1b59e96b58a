"""Records are of real rounds, and runs of `slipstream train decision` end in files or refusals.
What is trained learns what its records say, and is never worse than confidence."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.core.types import SamplingParams
from slipstream.models.decision import DECISION_NAME, GREEDY, SAMPLED, load_decision
from slipstream.train import decision_run
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.decision_run import (
    PROVENANCE_NAME,
    DecisionRun,
    RecordingPlan,
    log_losses,
    run_decision,
    split,
)
from slipstream.train.rounds import Records, RoundRecorder, records_of
from support.commands import refusal
from support.models import tiny_checkpoint, tiny_eagle

DEPTH, TOKENS = 3, 12
RECORDING = RecordingPlan(num_prompts=10, max_tokens=TOKENS, depth=DEPTH)
SETTINGS = DecisionSettings(width=4, max_epochs=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a target, a draft for it and prompts."""
    base = tmp_path_factory.mktemp("decision")
    tiny_checkpoint.save_checkpoint(base / "target")
    vocab = torch.arange(250) + 3
    tiny_checkpoint.save_draft(base / "target", base / "draft", vocab=vocab, max_lag=8)
    lines = [json.dumps({"prompt": f"number {i}"}) for i in range(12)]
    (base / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    tiny_eagle.save_for(tiny_checkpoint.tiny_llama(), base / "head")
    return base


@pytest.fixture(scope="module")
def engine(place):
    options = EngineOptions(numerics="fast")
    return Engine.load(str(place / "target"), options, draft=f"eagle3:{place / 'head'}")


@pytest.fixture(scope="module", params=["{}/draft", "eagle3:{}/head"])
def draft(place, request):
    return request.param.format(place)


@pytest.fixture(scope="module")
def recorder(draft, engine):
    return RoundRecorder(engine, engine.draft_model(draft).scorer, depth=DEPTH)


def record(recorder, temperature, seed=0):
    prompt = list(range(5, 25))
    sampling = SamplingParams(temperature=temperature, seed=seed)
    return records_of(list(recorder.record(prompt, [sampling], max_tokens=TOKENS, number=7)))


def run(place, **changes):
    values = {
        "target": str(place / "target"),
        "draft": str(place / "draft"),
        "data": (place / "prompts.jsonl",),
        "recording": RECORDING,
        "settings": SETTINGS,
        **changes,
    }
    done = []
    outcome = run_decision(
        DecisionRun(**values), clock=lambda: 0.0, progress=lambda *at: done.append(at)
    )
    return outcome, done


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_after_the_first_rejection_is_recorded(recorder, temperature):
    made = record(recorder, temperature)
    lags, accepted = made.stats[:, 3].tolist(), made.accepted.tolist()
    assert lags[0] == 0 and max(lags) < DEPTH
    for (lag, kept), following in pairwise(zip(lags, accepted, strict=True)):
        assert following[0] == (lag + 1 if kept and lag + 1 < DEPTH else 0) or following[0] == 0
        assert kept or following[0] == 0
    assert made.prompt.tolist() == [7] * len(made)
    assert bool(made.is_greedy.all()) == (temperature == 0)


def test_an_answer_is_the_same_behind_another_one(recorder):
    alone, prompt = record(recorder, 1.0), list(range(5, 25))
    samplings = [SamplingParams(temperature=heat) for heat in (0.0, 1.0)]
    both = records_of(list(recorder.record(prompt, samplings, max_tokens=TOKENS, number=7)))
    second = both.rows(~both.is_greedy)
    assert torch.equal(second.accepted, alone.accepted)
    assert torch.equal(second.stats, alone.stats)


def test_a_run_writes_weights_only_if_they_are_better(place, draft, monkeypatch):
    (outcome, done), folder = run(place, draft=draft), Path(draft.removeprefix("eagle3:"))
    assert done[-1] == (10, 10)
    written = load_decision(folder, hidden_size=32) is not None
    is_better = outcome.loss < outcome.calibrated_loss
    assert written == is_better == (outcome.weights is not None)
    monkeypatch.setattr(decision_run, "records_of", lambda made: _teach(records_of(made)))
    outcome, _ = run(place, draft=draft)
    assert outcome.weights == folder / DECISION_NAME
    assert json.loads((folder / PROVENANCE_NAME).read_text())["loss"] == outcome.loss
    outcome.weights.unlink()


def _teach(made):
    """Make the records say that a sure draft is wrong, and an unsure one right."""
    place = torch.arange(len(made))
    right = place % 2 == 0
    stats, hidden = made.stats.clone(), made.hidden.clone()
    stats[:, 0] = torch.where(right, -1.0, 2.0)
    hidden[:, 0] = torch.where(right, 5.0, -5.0)
    return replace(made, stats=stats, hidden=hidden, accepted=right ^ (place % 9 == 0))


def test_more_is_drafted_than_the_draft_was_trained_for(place):
    with pytest.raises(InvalidRequest, match="at most 8"):
        run(place, recording=RecordingPlan(num_prompts=10, depth=9))


def test_prompts_are_on_one_side_of_the_split_only(recorder):
    made = record(recorder, 0.0)
    ten = made.rows(torch.arange(len(made)).repeat(10))
    numbered = replace(ten, prompt=torch.arange(10).repeat_interleave(len(made)))
    parts = [set(part.prompt.tolist()) for part in split(numbered)]
    assert parts == [{5, 6, 7, 8, 9}, {3, 4}, {0, 1, 2}]
    with pytest.raises(TrainingError, match="at least 10 prompts"):
        split(made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--minutes": "0"}, "minutes is 0.0"),
        ({"--lr": "-1"}, "lr is -1.0"),
        ({"--num-prompts": "3"}, "--num-prompts"),
    ],
)
def test_the_command_says_what_is_wrong(place, capsys, change, message):
    options = {
        "--target": str(place / "target"),
        "--draft": str(place / "draft"),
        "--data": str(place / "prompts.jsonl"),
        **change,
    }
    words = [word for pair in options.items() for word in pair]
    assert message in refusal(capsys, "train", "decision", *words)


LEARNING = DecisionSettings(width=8, lr=1e-2, weight_decay=0.0, batch_rows=64, max_epochs=30)


def oracle(hidden, stats, effect):
    """The chance that records are drawn with; `effect` is what the state has to say."""
    return torch.sigmoid(0.5 * stats[:, 0] + effect * (hidden[:, 0].float() / 50 - 0.6))


def records(seed, count=1500):
    """Slots whose acceptance depends on confidence, on the state, and on how one decodes."""
    noise = torch.Generator().manual_seed(seed)
    # Far from zero mean and unit scale, as a draft's states are.
    hidden = (30 + 50 * torch.randn(count, 5, generator=noise)).bfloat16()
    top = 0.05 + 0.9 * torch.rand(count, generator=noise)
    lag = torch.randint(8, (count,), generator=noise)
    stats = torch.stack([top.logit(), -top.log(), torch.full((count,), 3.0), lag.float()], 1)
    cold, warm = oracle(hidden, stats, 2.0), oracle(hidden, stats, -1.0)
    greedy, drawn = torch.rand(2, count, generator=noise)
    is_greedy = greedy < 0.5
    accepted = drawn < torch.where(is_greedy, cold, warm)
    return Records(hidden, stats, accepted, is_greedy, torch.arange(count) // 20)


def chances(model, made):
    both = torch.from_numpy(model.score(made.hidden.float().numpy(), made.stats.numpy()))
    return torch.where(made.is_greedy, both[:, GREEDY], both[:, SAMPLED])


def test_it_comes_close_to_the_law_that_the_records_were_drawn_from():
    model, made = train_decision(records(0), records(1, 500), LEARNING), records(2)
    effect = torch.where(made.is_greedy, 2.0, -1.0)
    ours, best = chances(model, made), oracle(made.hidden, made.stats, effect)
    assert (ours - best).abs().mean() < 0.05
    own, known = (log_losses(at, made.accepted).mean() for at in (ours, made.confidence))
    assert own < log_losses(best, made.accepted).mean() + 0.01
    assert own < known - 0.03


def test_on_the_validation_records_it_is_never_worse_than_confidence():
    made, held = records(0, 40), records(1, 300)
    # What there is to learn is the opposite of what is judged: the draft taken at its word.
    wrong = replace(made, accepted=~made.accepted)
    honest = torch.rand(300, generator=torch.Generator().manual_seed(0)) < held.confidence
    held = replace(held, accepted=honest)
    model = train_decision(wrong, held, replace(LEARNING, lr=1.0, max_epochs=2))
    own = log_losses(chances(model, held), honest).mean()
    assert own <= log_losses(held.confidence, honest).mean() + 1e-6


def test_the_same_seed_gives_the_same_model():
    first, second = (train_decision(records(0, 200), records(1, 50), LEARNING) for _ in range(2))
    made = records(2, 5)
    assert torch.equal(chances(first, made), chances(second, made))
