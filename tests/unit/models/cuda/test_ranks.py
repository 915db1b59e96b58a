"""Two processes, each with a simulated GPU, replay the graphs of one model that is split."""

import itertools
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

from slipstream.core.tree import EMPTY, TokenTree
from slipstream.core.types import SamplingParams
from slipstream.models.causal import CausalModel
from slipstream.models.cuda.layers import FusedLayer, scale_linears
from slipstream.models.kv.batch import Draw, Part
from slipstream.models.loading import causal_model, sizes_of
from slipstream.models.torch import tensor_parallel
from slipstream.models.torch.choice import torch_decoder
from slipstream.models.torch.packing import Buckets
from slipstream.models.torch.ranks import join_ranks, leave_ranks
from slipstream.models.torch.shards import localise
from support.cuda.gpu import simulated_gpu
from support.models import tiny

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="two GPUs are simulated")
STATES = (1, 3)
"""Layers whose inputs every rank keeps."""
TREES = (EMPTY, TokenTree.chain([7, 3, 9]), TokenTree((3, 4, 5), (-1, -1, 1)))


def captures(decoder):
    """Kernels and exchanges of each captured shape, or number and kind of draws."""
    found = {}
    for key, entry in decoder.replay._entries.items():
        graph, shape = entry.replay.__self__, key if isinstance(key[1], bool) else key[1]
        names = [name for name, _ in graph.signatures]
        found[shape] = (graph.num_kernels, names.count("_allgather_base_"))
    return found


def rank_of(folder, rank, is_scaled, workers=None):
    ranks = join_ranks(rank, 2, device="cpu", meeting=f"{folder}/meeting")
    group = tensor_parallel.TensorParallelGroup(ranks, workers, is_scaled)
    two = DistributedConfig(tp_size=2)
    hf = AutoModelForCausalLM.from_pretrained(folder, distributed_config=two).eval()
    sizes = sizes_of(hf, 2)
    kept = {"hidden_layers": STATES, "hidden_size": sizes.hidden_size}
    sizes = replace(sizes, layout=replace(sizes.layout, device="cuda:0", **kept))
    localise(hf, ranks, in_order=True)
    own = torch_decoder(hf.to("cuda"), sizes, numerics="auto", split=group)
    own.buckets = Buckets((1, 4, 16), 4, own.buckets.tile)
    driven = tensor_parallel.SplitDecoder(own, ranks, workers) if workers else own
    return own, CausalModel(driven, sizes), ranks


def other_rank(folder, is_scaled, driver):
    with simulated_gpu():
        own, *made = rank_of(folder, 1, is_scaled)
        worker = tensor_parallel.TensorParallelWorker(*made)
        while (step := driver.recv()) is not None:
            driver.send(captures(own)) if step == "captures" else worker.run(step)
        leave_ranks()


class Split:
    """Rank 0, and the group's `Workers`, beside the same model on one simulated GPU."""

    def __init__(self, hf, folder, is_scaled):
        self.steps, (self.worker, theirs) = [], get_context("spawn").Pipe()
        given, self.is_scaled = (folder, is_scaled, theirs), is_scaled
        self.process = get_context("spawn").Process(target=other_rank, args=given)
        self.process.start()
        self.own, self.model, _ = rank_of(folder, 0, is_scaled, self)
        if is_scaled:
            scale_linears(hf.to("cuda"), "cuda", head=hf.lm_head)
        self.whole = causal_model(hf.to("cuda"), hidden_layers=STATES)
        self.whole.decoder.buckets = self.own.buckets
        self.pools = [(model, model.pool(8)) for model in (self.model, self.whole)]
        for model, pool in self.pools:
            model.decoder.prepare(pool)

    def send(self, step):
        self.steps.append(step)
        self.worker.send(step)

    def captures(self):
        self.worker.send("captures")
        return captures(self.own), self.worker.recv()


@pytest.fixture(
    scope="module",
    params=[("llama", "silu", False), ("qwen3", "gelu", False), ("llama", "silu", True)],
)
def split(request, tmp_path_factory):
    (family, act, is_scaled), folder = request.param, tmp_path_factory.mktemp("split")
    dtype = torch.bfloat16 if is_scaled else torch.float32
    hf = tiny.hf_model(family, hidden_act=act, attention_bias=True, mlp_bias=True, dtype=dtype)
    for name, param in hf.named_parameters():
        nn.init.normal_(param) if name.endswith("bias") else None
    hf.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch, simulated_gpu():
        patch.setenv("LOCAL_RANK", "0")  # so that it is afterwards as it was
        made = Split(hf, str(folder), is_scaled)
        yield made
        made.worker.send(None)
        leave_ranks()
        assert not captures(made.own)  # NCCL would wait for them
        made.process.join()
    assert made.process.exitcode == 0


def test_ranks_capture_all_that_comes_and_get_one_step_a_forward(split):
    before = split.captures()
    assert before[0] == before[1]
    assert len(before[0]) == 5 + 2 * 3  # rows by sessions, and draws of both kinds
    alone = {}
    for num, tree, heat in itertools.product((1, 3), TREES, (0.0, 0.9)):
        states, _ = [], split.steps.clear()
        sampling = SamplingParams(temperature=heat)
        draws = [Draw((2 + len(tree)) * each + 1, sampling, (each, 7)) for each in range(num)]
        found = []
        for model, pool in split.pools:
            caches = [model.open_in(pool) for _ in range(num)]
            parts = [Part(cache, tiny.tokens(2, seed=at), tree) for at, cache in enumerate(caches)]
            found.append(model.draw(parts, draws))
            slots = list(chain(*found[-1][1]))
            views = [caches[0].view([3 + at]).layers[3 + at] for at in STATES]
            states.append(torch.cat([own[:, slots].flatten() for own in views]).cpu())
            for cache in caches:
                cache.close()
        assert split.is_scaled or found[0][2] == found[1][2]
        (step,) = split.steps
        assert step.method is tensor_parallel.TensorParallelWorker.forward
        assert not step.arguments[1].values.size
        hidden = [drawn[0].cpu() for drawn in found]
        logits = (model.logits(found[1][0]).cpu() for model, _ in split.pools)
        # Heads are not rounded, and have the same states.
        for (own, whole), limit in ((hidden, 0.08), (states, 0.08), (logits, 1e-4)):
            assert (own - whole).norm() < (limit if split.is_scaled else 1e-5) * whole.norm()
        if split.is_scaled:  # the first session's rows have these bits in any batch
            assert torch.equal(alone.setdefault(tree, hidden[0]), hidden[0][: 2 + len(tree)])
    assert split.captures() == before


def test_a_split_layer_is_two_exchanges_more(split):
    whole, layers = captures(split.whole.decoder), split.own._body.layers
    each = 1 if isinstance(layers[0], FusedLayer) else 2  # with a sum of its own
    for shape, (num_kernels, num_exchanges) in captures(split.own).items():
        assert num_exchanges == (1 if isinstance(shape, tuple) else 2 * len(layers))
        assert num_kernels - whole[shape][0] <= each * num_exchanges + 8  # tokens, and embeddings
