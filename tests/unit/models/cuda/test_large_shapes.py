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
from slipstream.models.glide.chain_stop import DecisionNetwork
from slipstream.models.glide.glide_chain import STEPS
from slipstream.models.glide.glide_chains import GlideChains
from slipstream.models.glide.glide_init import GlideShape, config_for_target
from slipstream.models.glide.glide_weights import GlideWeights, glide_shapes
from slipstream.models.glide.load import glide_scorer, target_parts
from slipstream.models.loading import causal_model
from slipstream.models.torch import transformers_model
from support.cuda.gpu import simulated_gpu
from support.models import tiny
from support.models.rounds import speculate


def _sizes(vocab, hidden, intermediate, context, **more):
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    widths = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate}
    lengths = {"num_hidden_layers": 5, "max_position_embeddings": context}
    return {**heads, **widths, **lengths, **more}


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


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("llama-3-8b", SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.1, seed=3)),
        ("qwen3-8b", SamplingParams(temperature=1.0, seed=3)),
    ],
)
def test_rounds_of_a_draft_run_on_the_device_alone(name, sampling):
    hf = large(name)
    shape = GlideShape((0, 1, 2, 3, 4), head_size=16384, max_lag=8, num_layers=2)
    config = config_for_target(hf, shape, name=name, tokenizer_hash="t")
    number, strided = np.zeros(1, BFLOAT16), np.lib.stride_tricks.as_strided  # over and over
    tensors = {at: strided(number, size, [0] * len(size)) for at, size in glide_shapes(config)}
    weights = GlideWeights(config, tensors, np.arange(16384))
    decision = DecisionNetwork(config.hidden_size).model()
    scorer = glide_scorer(weights, target_parts(hf), dtype=BFLOAT16)
    chains = GlideChains(scorer, 2048, decision)
    target = tiny.local_target(causal_model(hf, numerics="fast"), num_pages=16)
    feed = TargetKv(target, config.target_layers)
    engine = LocalDraft(scorer, feed, decision=decision.score, chains=chains)
    chain = {"shape": Shape.CHAIN, "stop": StopPolicy.DECISION, "max_nodes": 5}
    options = SpeculationOptions(mode=Mode.FORCED, **chain)
    asked = {"sampling": sampling, "options": options, "max_tokens": 4}
    asked["has_decision_model"] = True
    out = speculate(target, engine, "glide", tiny.tokens(40), **asked)
    assert len(out.tokens) == 4
    assert out.num_drafted > 0
    graphs = {key[1]: entry.replay.__self__ for key, entry in chains.replay._entries.items()}
    assert graphs.pop("later").num_kernels <= 80 * STEPS
    assert [graph.num_kernels <= 84 for graph in graphs.values()] == [True]  # of many tokens each
