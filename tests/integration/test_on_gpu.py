"""The embedded engine on a GPU, from the files of a model to the text."""

import asyncio

import pytest
import torch

from slipstream.client import AsyncClient, Mode, SamplingParams, SpeculationOptions, StopPolicy
from slipstream.core.types import Shape
from slipstream.models.decision import save_decision
from slipstream.models.glide.chain_stop import DecisionNetwork
from support.models import tiny_checkpoint

pytestmark = pytest.mark.gpu
PROMPT = [5, 80, 6, 80, 6]
SAMPLED = SamplingParams(temperature=1.0, seed=2)
CHANGED = SamplingParams(temperature=0.7, top_k=20, repetition_penalty=1.2, seed=4)
REQUESTS = [
    (SamplingParams(), {"shape": Shape.CAPE, "stop": StopPolicy.DECISION}, {}),
    (SAMPLED, {"shape": Shape.CHAIN, "stop": StopPolicy.DECISION}, {}),
    (SAMPLED, {"shape": Shape.DYNAMIC, "stop": StopPolicy.SVIP}, {"regex": "[ab]{6}, [0-9]{4}"}),
    (CHANGED, {"shape": Shape.CAPE, "stop": StopPolicy.SVIP}, {"logprobs": 2}),
]


@pytest.fixture
def folders(tmp_path):
    """A target, and GliDe weights with a decision model for it."""
    target = tiny_checkpoint.save_checkpoint(tmp_path / "target")
    draft = tiny_checkpoint.save_draft(target, tmp_path / "draft")
    torch.manual_seed(0)
    save_decision(DecisionNetwork(32).model(), draft)
    return str(target), str(draft)


async def answers(client, *, mode):
    requests = (
        client.generate(
            PROMPT,
            max_tokens=12,
            sampling=sampling,
            speculation=SpeculationOptions(mode=mode, **(options if mode is Mode.FORCED else {})),
            **asked,
        )
        for sampling, options, asked in REQUESTS
    )
    return await asyncio.gather(*requests)


async def all_answers(folders, device):
    target, draft = folders
    async with AsyncClient.embedded(target, draft, dtype="float32", device=device) as client:
        return [await answers(client, mode=mode) for mode in (Mode.OFF, Mode.FORCED)]


def test_requests_at_once_get_the_text_of_plain_decoding_on_the_cpu(folders):
    (expected, _), (plain, drafted) = (
        asyncio.run(all_answers(folders, device)) for device in ("cpu", "cuda")
    )
    for own in (plain, drafted):
        assert [one.token_ids for one in own] == [one.token_ids for one in expected]
    assert all(one.stats.speculation.num_draft_tokens for one in drafted)
    for one, other in zip(drafted[3].logprobs, expected[3].logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
