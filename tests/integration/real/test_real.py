"""Laws on a real model with the shipped draft: the text is the target's own, token for token."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.bench.questions import read_questions, select
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.profile import DraftFacts, resolve
from slipstream.core.types import SamplingParams, Shape, StopPolicy
from slipstream.text.prompts import encode_prompt
from support.models.rounds import plain, speculate

pytestmark = pytest.mark.real

PROMPTS = Path(__file__).parents[3] / "slipstream" / "data" / "prompts.jsonl"
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=3)
NUM_PROMPTS = 6
NUM_TOKENS = 32

# A pairwise covering set of draft, shape, stop policy and law.
PAIRS = [
    ("glide", Shape.CHAIN, StopPolicy.FIXED, GREEDY),
    ("glide", Shape.CAPE, StopPolicy.SVIP, SAMPLED),
    ("glide", Shape.DYNAMIC, StopPolicy.COST, GREEDY),
    ("glide", Shape.PRODUCT, StopPolicy.COST, SAMPLED),
    ("glide", Shape.CAPE, StopPolicy.FIXED, GREEDY),
    ("glide", Shape.DYNAMIC, StopPolicy.FIXED, SAMPLED),
    ("glide", Shape.CHAIN, StopPolicy.COST, SAMPLED),
    ("glide", Shape.PRODUCT, StopPolicy.SVIP, GREEDY),
    ("ngram", Shape.CHAIN, StopPolicy.FIXED, GREEDY),
    ("ngram", Shape.CHAIN, StopPolicy.FIXED, SAMPLED),
    ("vanilla", Shape.CHAIN, StopPolicy.SVIP, GREEDY),
    ("vanilla", Shape.CAPE, StopPolicy.COST, SAMPLED),
    ("vanilla", Shape.PRODUCT, StopPolicy.FIXED, SAMPLED),
    ("vanilla", Shape.DYNAMIC, StopPolicy.SVIP, GREEDY),
]


class Real:
    """An engine, its drafts, and what it says without them."""

    def __init__(self, folder, dtype):
        self.engine = Engine.load(str(folder), EngineOptions(dtype=dtype))
        self.drafters = {
            "glide": self.engine.drafter("glide"),
            "ngram": self.engine.drafter("ngram"),
            "vanilla": self.engine.drafter(f"vanilla:{folder}"),
        }
        self._plain = {}

    def plain(self, prompt, sampling, max_tokens):
        """Plain decoding; a shorter run is the beginning of a longer one."""
        key = (prompt, sampling)
        if key not in self._plain or self._plain[key][0] < max_tokens:
            asked = {"sampling": sampling, "max_tokens": max_tokens}
            stops = self.engine.facts.stop_token_ids
            out = plain(self.engine.target, prompt, **asked, stop_token_ids=stops)
            self._plain[key] = (max_tokens, out.tokens)
        return self._plain[key][1][:max_tokens]

    def speculate(self, kind, prompt, sampling, options, max_tokens):
        drafter = self.drafters[kind]
        assert resolve(options, DraftFacts(kind, drafter.facts.profile)).mode is not Mode.OFF
        asked = {"sampling": sampling, "options": options, "max_tokens": max_tokens}
        asked |= {"profile": drafter.facts.profile}
        asked |= {"stop_token_ids": self.engine.facts.stop_token_ids}
        return speculate(self.engine.target, drafter.draft, kind, prompt, **asked)


@pytest.fixture(scope="module")
def bfloat16(real_model):
    return Real(real_model, "bfloat16")


@pytest.fixture(scope="module")
def float32(real_model):
    return Real(real_model, "float32")


def prompts(real):
    """Questions of as many categories."""
    questions = select(read_questions(PROMPTS), limit=NUM_PROMPTS)
    assert len({question.category for question in questions}) == NUM_PROMPTS
    return [encode_prompt(real.engine.text, question.turns[0]) for question in questions]


def assert_identical(real, kind, sampling, options, prompts, max_tokens):
    drafted = 0
    for prompt in prompts:
        out = real.speculate(kind, prompt, sampling, options, max_tokens)
        assert out.tokens == real.plain(prompt, sampling, max_tokens)
        drafted += out.num_drafted
    assert drafted > 0, "inconclusive: nothing was drafted"


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_shipped_setting_in_bfloat16_is_plain_decoding(bfloat16, sampling):
    asked = prompts(bfloat16)
    assert_identical(bfloat16, "glide", sampling, SpeculationOptions(), asked, NUM_TOKENS)


def covering(kind, shape, stop):
    depth = 2 if kind == "vanilla" else 4  # a step of the target's twin costs as much as a round
    widths = (3, 2, 1)[:depth] if shape is Shape.PRODUCT else None
    sizes = {"widths": widths, "max_draft_tokens": depth, "max_nodes": 15}
    return SpeculationOptions(mode=Mode.FORCED, shape=shape, stop=stop, **sizes)


@pytest.mark.parametrize(("kind", "shape", "stop", "sampling"), PAIRS)
def test_a_covering_set_in_bfloat16_is_plain_decoding(bfloat16, kind, shape, stop, sampling):
    options = covering(kind, shape, stop)
    first = PAIRS.index((kind, shape, stop, sampling)) % (NUM_PROMPTS - 1)
    assert_identical(bfloat16, kind, sampling, options, prompts(bfloat16)[first : first + 2], 24)


def test_greedy_output_in_float32_is_that_of_transformers(real_model, float32):
    """Compare the shipped draft and setting with transformers' own `generate`."""
    reference = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32).eval()
    drafted = 0
    asked = prompts(float32)
    for prompt, expected in zip(asked, _generate(reference, asked), strict=True):
        out = float32.speculate("glide", prompt, GREEDY, SpeculationOptions(), NUM_TOKENS)
        assert list(out.tokens) == expected[: len(out.tokens)]
        assert len(out.tokens) == min(NUM_TOKENS, _end(expected))
        drafted += out.num_drafted
    assert drafted > 0, "inconclusive: nothing was drafted"


EOS = 2


def _end(tokens):
    return tokens.index(EOS) + 1 if EOS in tokens else len(tokens)


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
