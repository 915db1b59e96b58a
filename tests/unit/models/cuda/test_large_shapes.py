"""The CUDA path at the sizes of large models: shapes, dtypes and devices of every operator.
No tensor has values: what the host reads is ones. Layers are alike, so that a few stand for all."""

from copy import deepcopy
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams, Shape, StopPolicy
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.models.dtypes import BFLOAT16
from slipstream.models.eagle.eagle_weights import EagleWeights, eagle_shapes
from slipstream.models.format.rope import Rotary
from slipstream.models.glide.glide_chain import STEPS
from slipstream.models.glide.glide_chains import GlideChains
from slipstream.models.glide.glide_config import EagleConfig
from slipstream.models.glide.glide_init import GlideShape, config_for_target
from slipstream.models.glide.glide_weights import GlideWeights, glide_shapes
from slipstream.models.glide.load import draft_scorer, target_parts
from slipstream.models.loading import causal_model
from slipstream.models.torch import transformers_model
from slipstream.train.decision import DecisionNetwork
from support.cuda.gpu import simulated_gpu
from support.models import tiny
from support.models.rounds import speculate


def _sizes(vocab, hidden, intermediate, context, **more):
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    widths = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate}
    lengths = {"num_hidden_layers": 5, "max_position_embeddings": context}
    return {**heads, **widths, **lengths, **more}


ROTARY = Rotary(1 / 5e5 ** (np.arange(0, 128, 2, dtype=np.float32) / 128))
MODELS = {
    "llama-3-8b": (LlamaForCausalLM, LlamaConfig(**_sizes(128256, 4096, 14336, 8192))),
    "qwen3-8b": (Qwen3ForCausalLM, Qwen3Config(**_sizes(151936, 4096, 12288, 40960, head_dim=128))),
}


@pytest.fixture(autouse=True)
def gpu():
    """Sizes alone: what is compared with transformers has no values."""
    with (
        simulated_gpu(has_values=False) as device,
        mock.patch(f"{transformers_model.__name__}.computed_states", return_value=None),
    ):
        yield device


def large(name):
    family, config = MODELS[name]
    with torch.device("meta"):
        return family(deepcopy(config)).to(torch.bfloat16).eval().requires_grad_(False).cuda()


def strided(shapes):
    """Weights of some shapes, one number over and over."""
    number, made = np.zeros(1, BFLOAT16), np.lib.stride_tricks.as_strided
    return {name: made(number, size, [0] * len(size)) for name, size in shapes}


def glide(hf, name, *, is_scaled=False):
    shape = GlideShape((0, 1, 2, 3, 4), head_size=16384, max_lag=8, num_layers=2)
    config = config_for_target(hf, shape, name=name, tokenizer_hash="t")
    weights = GlideWeights(config, strided(glide_shapes(config)), np.arange(16384))
    return draft_scorer(weights, target_parts(hf), dtype=BFLOAT16, is_scaled=is_scaled)


def eagle(hf, name, *, is_scaled=False):
    own = hf.config
    sizes = {"vocab_size": own.vocab_size, "head_size": 32000, "hidden_size": own.hidden_size}
    sizes |= {"target_hidden_size": own.hidden_size, "head_dim": 128, "rotary": ROTARY}
    sizes |= {"num_heads": 32, "num_kv_heads": 8, "intermediate_size": own.intermediate_size}
    config = EagleConfig(**sizes, target_layers=(1, 2, 4), qk_norm=name.startswith("qwen"))
    weights = EagleWeights(config, strided(eagle_shapes(config).items()), np.arange(32000))
    return draft_scorer(weights, target_parts(hf), dtype=BFLOAT16, is_scaled=is_scaled)


CUT = SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.1, seed=3)
PLAIN = SamplingParams(temperature=1.0, seed=3)


@pytest.mark.parametrize(
    ("make", "is_scaled", "name", "sampling", "most"),
    [
        (glide, False, "llama-3-8b", CUT, (79, 84)),
        (glide, True, "qwen3-8b", PLAIN, (79, 84)),
        (eagle, False, "qwen3-8b", CUT, (21, 30)),
        (eagle, True, "llama-3-8b", PLAIN, (22, 32)),  # what two norms make is rounded apart
    ],
)
def test_rounds_of_a_draft_run_on_the_device_alone(gpu, make, is_scaled, name, sampling, most):
    (step, first), hf = most, large(name)
    scorer = make(hf, name, is_scaled=is_scaled)
    decision = DecisionNetwork(scorer.hidden_size).model()
    chains = GlideChains(scorer, 2048, decision)
    model = causal_model(hf, numerics="fast", hidden_layers=(1, 2, 4))
    target = tiny.local_target(model, num_pages=16)
    engine = LocalDraft(
        scorer, TargetKv(target, scorer.layers), decision=decision.score, chains=chains
    )
    chain = {"shape": Shape.CHAIN, "stop": StopPolicy.DECISION, "max_nodes": 5}
    options = SpeculationOptions(mode=Mode.FORCED, **chain)
    asked = {"sampling": sampling, "options": options, "max_tokens": 4}
    asked["has_decision_model"] = True
    for session in "st":  # the first one captures
        gpu.num_waits = 0
        out = speculate(target, engine, "glide", tiny.tokens(40), name=session, **asked)
    assert len(out.tokens) == 4
    assert out.num_drafted > 0
    # For the target's tokens, and for a chain; a head's pass over a prompt brings its scores.
    num_chains = sum(at.proposing is not None for at in out.rounds)
    assert gpu.num_waits == len(out.rounds) + num_chains + (0 if make is glide else 2)
    (entry,) = chains.replay._entries.values()  # no later steps: all that the host reads is ones
    assert entry.replay.__self__.num_kernels <= first + step * STEPS
