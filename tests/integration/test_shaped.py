"""Engines that work in fixed shapes put out what the others do, on a CPU and on a GPU."""

import asyncio

import numpy as np
import pytest
import torch

from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal, SamplingParams, Session, Shape, StopPolicy
from slipstream.core.verify.draws import fits_device
from slipstream.models.decision import save_decision
from slipstream.models.loading import causal_model
from slipstream.train.decision import DecisionNetwork
from slipstream.verifying.request import ScheduledRequest, TargetRequest
from support.models import tiny, tiny_checkpoint, tiny_eagle

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.1, top_k=30, top_p=0.9, min_p=0.01, seed=8),
    SamplingParams(temperature=1.0, top_k=9, repetition_penalty=1.2, seed=6),
]


class Short:
    """Outputs have one token: what a walk does not reach can't be followed further."""

    def allowed(self, output):
        if output:
            raise InvalidRequest("the output is too long")
        return np.arange(tiny.VOCAB)

    def forced(self, output):
        return ()


def batch_of(target):
    """Verifications of requests of every kind, one of them a part of a long prompt only."""
    batch, logprobs = [], [None, 2] * len(SAMPLINGS)
    for at, sampling in enumerate([*SAMPLINGS, *SAMPLINGS]):
        prompt = tiny.tokens(20 + 30 * at, seed=at)
        tree = TokenTree((3, 9, 4, 3), (-1, -1, 0, 1))
        proposal = Proposal(tree, (NodeStats(0.5, 0.5, 1.0),) * 4)
        session = Session(str(at), len(prompt), 9, sampling, num_logprobs=logprobs[at])
        request = TargetRequest(TokenSequence(session, prompt), proposal)
        target.begin(request)
        request.held.constraint = Short() if at in (0, 4, 6) else None
        batch.append(ScheduledRequest(request, 50 if at == 2 else len(prompt)))
    return batch


@pytest.mark.gpu
def test_requests_of_every_kind_share_a_step():
    verdicts = []
    shaped = causal_model(tiny.hf_model().to("cuda"))
    for target in map(tiny.local_target, (tiny.causal(), shaped)):
        batch = batch_of(target)
        requests = [at.request for at in batch]
        assert len({fits_device(request.session) for request in requests}) == 2
        target.step(batch)
        (left,) = (request for request in requests if not request.is_done)
        target.step([ScheduledRequest(left, left.num_pending)])
        outcomes = [request.verdict or request.error for request in requests]
        verdicts.append([getattr(outcome, "tokens", repr(outcome)) for outcome in outcomes])
    assert {type(verdicts[0][at]) for at in (0, 4, 6)} == {str, tuple}
    assert verdicts[0] == verdicts[1]


PROMPT = [5, 80, 6, 80, 6]
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=2)
CHANGED = SamplingParams(temperature=0.7, top_k=20, repetition_penalty=1.2, seed=4)
REQUESTS = [
    (SamplingParams(), {"shape": Shape.CAPE, "stop": StopPolicy.DECISION}, {}),
    (SAMPLED, {"shape": Shape.CHAIN, "stop": StopPolicy.DECISION}, {}),
    (SAMPLED, {"shape": Shape.DYNAMIC, "stop": StopPolicy.SVIP}, {"regex": "[ab]{6}, [0-9]{4}"}),
    (CHANGED, {"shape": Shape.CAPE, "stop": StopPolicy.SVIP}, {"logprobs": 2}),
]


@pytest.fixture(params=["", "eagle3:"], ids=["glide", "eagle3"])
def folders(tmp_path, request):
    """A target, and GliDe weights or a head for it, with a decision model."""
    target = tiny_checkpoint.save_checkpoint(tmp_path / "target")
    if request.param:
        config = tiny_eagle.config(tiny_checkpoint.tiny_llama(), target_layers=(0, 1, 2))
        draft = tiny_eagle.save(tmp_path / "draft", tiny_eagle.model(config))
    else:
        draft = tiny_checkpoint.save_draft(target, tmp_path / "draft")
    torch.manual_seed(0)
    save_decision(DecisionNetwork(32).model(), draft)
    return str(target), request.param + str(draft)


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


async def all_answers(folders, device, dtype="float32"):
    target, draft = folders
    async with AsyncClient.embedded(target, draft, dtype=dtype, device=device) as client:
        return [await answers(client, mode=mode) for mode in (Mode.OFF, Mode.FORCED)]


@pytest.mark.gpu
def test_requests_at_once_get_the_text_of_plain_decoding_on_the_cpu(folders):
    (expected, _), (plain, drafted) = (
        asyncio.run(all_answers(folders, device)) for device in ("cpu", "cuda")
    )
    for own in (plain, drafted):
        assert [one.token_ids for one in own] == [one.token_ids for one in expected]
    assert all(one.stats.speculation.num_draft_tokens for one in drafted)
    for one, other in zip(drafted[3].logprobs, expected[3].logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.gpu
def test_in_fp8_requests_at_once_get_the_text_of_plain_decoding(folders):
    plain, drafted = asyncio.run(all_answers(folders, "cuda", "fp8"))
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert all(one.stats.speculation.num_draft_tokens for one in drafted)
