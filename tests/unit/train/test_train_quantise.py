"""`train quantise` on a tiny target: blocks that are drafted with, and clear refusals."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from slipstream.cli.main import app_of
from slipstream.client import Client
from slipstream.core.types import SamplingParams
from slipstream.models.glide.glide_config import CONFIG_NAME
from slipstream.models.glide.glide_files import load_weights
from slipstream.models.glide.glide_weights import BLOCKS_NAME, HEAD, read_glide
from slipstream.models.torch.loading import load_target_parts
from slipstream.train.data import ReadLimits, read_data
from slipstream.train.features import FeatureSet
from slipstream.train.glide import generated_positions, lag_mask, states
from slipstream.train.quantise import PROVENANCE_NAME, input_moments
from slipstream.train.run import borrowed
from support.models.tiny_training import glide_run, train, training_place

SIZES = ("--num-conversations", "8", "--num-heldout", "4")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A target, text, and a trained draft of two layers in `weights`."""
    base = training_place(tmp_path_factory.mktemp("quantise"), intermediate_size=64)
    train(glide_run(base, base, num_layers=2))
    return base


def command(place, draft, *more, target="target", data="data.jsonl"):
    words = ["--target", str(place / target), "--data", str(place / data), "--draft", str(draft)]
    return CliRunner().invoke(app_of(()), ["train", "quantise", *words, *SIZES, *more])


@pytest.fixture
def draft(place, tmp_path):
    """A copy of the draft, to be written to."""
    return shutil.copytree(place / "weights", tmp_path / "draft")


def test_the_command_writes_blocks_and_prints_acceptance(place, draft):
    result = command(place, draft, "--threads", "1")
    assert result.exit_code == 0, result.output
    before, after, written = result.output.splitlines()
    assert before.startswith("before: acceptance at lag 0 0.") and "at lag 4 0." in before
    assert after.startswith("after: acceptance at lag 0 0.")
    assert written.startswith(f"{draft / BLOCKS_NAME}: ")
    assert read_glide(draft).blocks is not None
    record = json.loads((draft / PROVENANCE_NAME).read_text())
    assert record["data"][0]["num_documents"] == 21
    assert record["num_conversations"] == 8 and record["seed"] == 0
    assert len(record["before"]["acceptance"]) == len(record["after"]["acceptance"]) == 5


def test_the_same_seed_writes_the_same_file(place, draft):
    seen = []
    for seed in ("0", "0", "1"):
        assert command(place, draft, "--seed", seed).exit_code == 0
        seen.append((draft / BLOCKS_NAME).read_bytes())
    assert seen[0] == seen[1] != seen[2]


def test_a_pair_with_blocks_writes_the_same_text(place, draft):
    def answers():
        found = []
        with Client.embedded(str(place / "target"), str(draft)) as client:
            for prompt in ("w7 w8 w9", "w3", "w20 w21 w22 w23"):
                for temperature in (0.0, 1.0):
                    sampling = SamplingParams(temperature=temperature, seed=5)
                    result = client.generate(prompt, max_tokens=24, sampling=sampling)
                    found.append(result.token_ids)
        return found

    expected = answers()
    assert command(place, draft).exit_code == 0
    assert answers() == expected


def test_moments_are_those_of_the_inputs(place):
    target = load_target_parts(str(place / "target"))
    model, vocab = load_weights(place / "weights")
    model = model.float()
    layers = model.config.target_layers
    frozen = borrowed(target, vocab, 64, torch.float32)
    data = read_data(place / "data.jsonl", ReadLimits(61), encode=lambda prompt: [1, 2])
    batch = FeatureSet([data], target.model, layers).batch([0, 1, 2])
    moments = input_moments(model, frozen, [batch])
    keep = generated_positions(batch).flatten()
    parts = []
    with torch.inference_mode():
        for lag in (0, 1, 3):
            mask = lag_mask(batch.ids.shape[1], lag).expand(3, -1, -1, -1)
            parts.append(states(model, frozen, batch, mask).flatten(0, 1)[keep].double())
    final = torch.cat(parts)
    torch.testing.assert_close(
        moments.mean(HEAD), final.T @ final / len(final), rtol=1e-4, atol=1e-5
    )
    shared = [moments.mean(f"layers.0.self_attn.{name}_proj.weight") for name in "qkv"]
    assert all(torch.equal(own, shared[0]) for own in shared)
    embedded = frozen.embeddings[batch.ids.flatten()[keep]]
    inputs = model.layers[0].self_norm(embedded).detach().double()
    torch.testing.assert_close(shared[0], inputs.T @ inputs / len(inputs), rtol=1e-4, atol=1e-5)
    assert moments.mean("layers.1.mlp.down_proj.weight").shape == (64, 64)


def test_missing_and_too_little_text_are_refused(place, draft):
    assert "absent.jsonl can't be read" in str(command(place, draft, data="absent.jsonl").exception)
    result = command(place, draft, "--num-conversations", "40")
    assert "answered conversations are too few to read 40" in str(result.exception)
    assert not (draft / BLOCKS_NAME).exists()


def test_the_target_of_another_tokenizer_is_refused(place, draft):
    path = draft / CONFIG_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_hash": "f" * 64}))
    assert "the draft was trained with tokenizer ffff" in str(command(place, draft).exception)
