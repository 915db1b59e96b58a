"""Engines that work in fixed shapes put out what the others do; here on a CPU, without graphs."""

import pytest
import torch

from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import (
    NodeStats,
    Proposal,
    SamplingParams,
    Session,
    Shape,
    StopPolicy,
    Verification,
)
from slipstream.core.verify.draws import fits_device
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.models.cuda.graphs import Replay
from slipstream.models.glide.glide_chains import GlideChains
from slipstream.models.target.causal import CausalModel
from slipstream.verifying.request import TargetRequest
from slipstream.verifying.schedule import ScheduledRequest
from support.models import tiny
from support.models.rounds import plain, speculate

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.0, top_k=9, repetition_penalty=1.2, seed=6),
]
PROMPTS = [tiny.tokens(6) * 3, tiny.tokens(118, seed=4)]


def shaped_target(device="cpu"):
    model = CausalModel(tiny.hf_model().to(device), engine="shaped")
    return tiny.local_target(model), model


def shaped_draft(target, device="cpu"):
    scorer = tiny.glide(device=device, native=False)
    chains = GlideChains(scorer, Replay(torch.device(device)), context_length=512)
    return LocalDraft(scorer, TargetKv(target, scorer.config.target_layers), chains=chains)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [Shape.CHAIN, Shape.CAPE, Shape.DYNAMIC])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_output_is_that_of_plain_decoding_without_shapes(sampling, shape, prompt):
    expected = plain(tiny.local_target(tiny.causal()), prompt, sampling=sampling, max_tokens=24)
    target, _ = shaped_target()
    options = SpeculationOptions(mode=Mode.FORCED, shape=shape, stop=StopPolicy.SVIP, max_nodes=15)
    asked = {"sampling": sampling, "options": options, "max_tokens": 24}
    out = speculate(target, shaped_draft(target), "glide", prompt, **asked)
    assert out.tokens == expected.tokens
    assert out.num_drafted > 0


def batch_of(target):
    """Verifications of requests of every kind, one of them a part of a long prompt only."""
    batch = []
    for at, sampling in enumerate([*SAMPLINGS, *SAMPLINGS]):
        prompt = tiny.tokens(20 + 30 * at, seed=at)
        tree = TokenTree((3, 9, 4, 3), (-1, -1, 0, 1))
        proposal = Proposal(tree, (NodeStats(0.5, 0.5, 1.0),) * 4)
        session = Session(str(at), len(prompt), 9, sampling)
        request = TargetRequest(TokenSequence(session, prompt), proposal)
        target.begin(request)
        batch.append(ScheduledRequest(request, 50 if at == 2 else len(prompt)))
    return batch


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_requests_of_every_kind_share_a_step(device):
    verdicts = []
    for target in (tiny.local_target(tiny.causal()), shaped_target(device)[0]):
        batch = batch_of(target)
        requests = [at.request for at in batch]
        assert len({fits_device(request.session) for request in requests}) == 2
        target.step(batch)
        (left,) = (request for request in requests if not request.is_done)
        target.step([ScheduledRequest(left, left.num_pending)])
        verdicts.append([request.result().tokens for request in requests])
    assert verdicts[0] == verdicts[1]


ON_DEVICE = [(0, Shape.CAPE), (1, Shape.CHAIN), (1, Shape.DYNAMIC), (2, Shape.CAPE)]
ON_DEVICE = [(SAMPLINGS[at], shape, Verification.EXACT) for at, shape in ON_DEVICE]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sampling", "shape", "verification"),
    [*ON_DEVICE, (SAMPLINGS[1], Shape.CAPE, Verification.MCSD)],
)
def test_the_output_on_a_device_is_that_of_plain_decoding_there(sampling, shape, verification):
    target, _ = shaped_target("cuda")
    expected = plain(target, PROMPTS[1], sampling=sampling, max_tokens=12)
    tree = {"shape": shape, "stop": StopPolicy.SVIP, "max_nodes": 15}
    options = SpeculationOptions(mode=Mode.FORCED, verification=verification, **tree)
    asked = {"sampling": sampling, "options": options, "max_tokens": 12}
    out = speculate(target, shaped_draft(target, "cuda"), "glide", PROMPTS[1], **asked)
    assert out.num_drafted > 0
    assert len(out.tokens) == 12
    if verification is Verification.EXACT:
        assert out.tokens == expected.tokens
