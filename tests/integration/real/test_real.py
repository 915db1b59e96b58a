"""Laws on a real model with the shipped draft: the text is the target's own, token for token."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.bench.questions import read_questions, select
from slipstream.cli.main import exit_code
from slipstream.client import Client

pytestmark = pytest.mark.real
PROMPTS = Path(__file__).parents[3] / "slipstream" / "data" / "prompts.jsonl"
NUM_PROMPTS = 6
NUM_TOKENS = 32
GLIDE, TWIN = "depth=4+nodes=15", "vanilla:smollm2-135m+depth=2+nodes=15"
METHODS = {
    "0": (
        *("forced", f"glide+{GLIDE}", f"glide+dynamic+cost+{GLIDE}", f"glide+cape+{GLIDE}"),
        *("glide+product=3x2x1+svip", "ngram", f"{TWIN}+svip", f"{TWIN}+dynamic+svip"),
    ),
    "0.9": (
        *("forced", f"glide+cape+svip+{GLIDE}", "glide+product=3x2x1+cost"),
        *(f"glide+dynamic+{GLIDE}", f"glide+cost+{GLIDE}", "ngram", f"{TWIN}+cape+cost"),
        "vanilla:smollm2-135m+product=3x2",
    ),
}
"""The shipped setting, and a pairwise covering set of draft, shape, stop policy and temperature.
A step of the target's twin costs as much as a round."""


@pytest.mark.usefixtures("real_model")
@pytest.mark.parametrize("temperature", METHODS)
def test_a_covering_set_in_bfloat16_is_plain_decoding(tmp_path, temperature):
    out, methods = tmp_path / "out.json", METHODS[temperature]
    flags = ["--target", "smollm2-135m", "--dtype", "bfloat16", "--temperature", temperature]
    flags += ["--limit", "3", "--max-new-tokens", "24", "--json", str(out)]
    assert exit_code(["bench", "speed", *flags, "--methods", ",".join(methods)]) == 0
    found = json.loads(out.read_text())["methods"]
    assert set(found) == {"plain", *methods}
    for name in methods:
        of = found[name]["overall"]
        assert (of["outputs"], of["identical"], of["identity"]) == (3, 3, "identical"), name


def test_greedy_output_in_float32_is_that_of_transformers(real_model):
    """Compare the shipped draft and setting with transformers' own `generate`."""
    reference = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32).eval()
    questions = select(read_questions(PROMPTS), limit=NUM_PROMPTS)
    assert len({question.category for question in questions}) == NUM_PROMPTS
    with Client.embedded(str(real_model), dtype="float32") as client:
        asked = [client.tokenize(question.turns[0]) for question in questions]
        results = [client.generate(prompt, max_tokens=NUM_TOKENS) for prompt in asked]
    for result, expected in zip(results, _generate(reference, asked), strict=True):
        assert list(result.token_ids) == expected[: len(result.token_ids)]
        assert len(result.token_ids) == min(NUM_TOKENS, [*expected, EOS].index(EOS) + 1)
    drafted = [result.stats.speculation.num_draft_tokens for result in results]
    assert sum(drafted) > 0, "inconclusive: nothing was drafted"


EOS = 2


@torch.inference_mode()
def _generate(model, batch):
    """Greedy continuations by transformers, the batch padded on the left."""
    width = max(map(len, batch))
    ids = torch.tensor([[EOS] * (width - len(prompt)) + list(prompt) for prompt in batch])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=EOS
    )
    return out[:, width:].tolist()
