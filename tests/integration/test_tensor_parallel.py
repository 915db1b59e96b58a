"""A model that two CPU processes hold together says what one process says."""

import signal
import time
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from slipstream.client import Client
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session, Shape
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.models.dtypes import FLOAT32
from slipstream.models.kv.batch import Part
from slipstream.models.loading import causal_model
from slipstream.models.torch.arrays import as_tensor
from slipstream.models.torch.loading import load_target_parts
from slipstream.models.torch.tensor_parallel import TensorParallelWorker, WorkerStep
from slipstream.options import build
from slipstream_target.config import TargetConfig
from slipstream_target.tensor_parallel import WorkerProcesses
from support.models import tiny
from support.models.rounds import plain, speculate
from support.services.processes import command_line, kill, serve, up

END = "<|endoftext|>"  # the name that Qwen's tokenizers want there to be
TWO = {"SLIPSTREAM_TARGET_TENSOR_PARALLEL": "2", "SLIPSTREAM_TARGET_DTYPE": "float32"}
SAMPLINGS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0, seed=11)}
PROMPTS = [tiny.tokens(6) * 3, tiny.tokens(118, seed=4)]
MAX_TOKENS = 16
TREE = TokenTree((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3))


def save_model(folder, family):
    """One of `tiny`'s models (4 heads, 2 key heads) as a directory."""
    tiny.hf_model(family).save_pretrained(folder)
    words = {END: tiny.EOS} | {f"t{token}": token for token in range(1, tiny.VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    return folder


class World:
    def __init__(self, folder, dtype, family, driver):
        team = driver.join()
        loaded = load_target_parts(str(folder), dtype=dtype, num_ranks=2)
        kept = {"hidden_layers": (1, 3)}
        self.shared = causal_model(loaded.model, split=team, path=folder, **kept)
        self.whole = tiny.causal(family, dtype=getattr(torch, dtype), engine="torch", **kept)
        self.target = tiny.local_target(self.shared, num_pages=16)
        scorer = tiny.glide(dtype=getattr(torch, dtype))
        self.draft = LocalDraft(scorer, TargetKv(self.target, scorer.config.target_layers))


@pytest.fixture(scope="module", params=[("float32", "qwen2"), ("bfloat16", "qwen3")])
def world(request, tmp_path_factory):
    dtype, family = request.param
    folder = save_model(tmp_path_factory.mktemp("split") / family, family)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")  # so that it is afterwards as it was
        asked = {"model": str(folder), "dtype": dtype, "threads": 1, "hidden_layers": "1,3"}
        lost = SimpleQueue()
        with WorkerProcesses(
            build(TargetConfig, tensor_parallel=2, **asked), lambda *reason: lost.put(reason)
        ) as driver:
            yield World(folder, dtype, family, driver)
            assert lost.empty()
            # A rank that fails at a step says why.
            driver.send(WorkerStep(TensorParallelWorker.close, (99,)))
            reason = "rank 1 failed at a step of all ranks: KeyError(99)"
            assert lost.get(timeout=60) == (reason, False)


def run(model, cache, pending, tree=TREE):
    """Logits of a step, after which the path 1, 3, 4 of the tree is kept."""
    hidden, (slots,) = model.forward([Part(cache, pending, tree)])
    cache.keep([*slots[: len(pending)], *(slots[len(pending) + at] for at in (1, 3, 4))])
    return model.logits(hidden)


def test_two_processes_compute_what_one_does_and_keep_the_same_keys(world):
    tolerance = 1e-4 if world.shared.dtype == FLOAT32 else 0.15
    caches = {model: model.open(256) for model in (world.shared, world.whole)}
    for pending in (tiny.tokens(126), [4], [9, 2]):
        ours, theirs = (run(model, cache, pending) for model, cache in caches.items())
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    ours, theirs = caches.values()
    assert ours.count == theirs.count == 138
    for layer in world.shared.layout.shapes():
        pair = (cache.gather(layer, 3, 138) for cache in (ours, theirs))
        torch.testing.assert_close(*pair, atol=tolerance, rtol=tolerance)
    assert ours.gather(0, 3, 138).shape == (4, 135, 16)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_speculation_changes_no_token(world, sampling):
    options = SpeculationOptions(mode=Mode.FORCED, shape=Shape.CAPE, max_nodes=15)
    for prompt in PROMPTS:
        asked = {"sampling": SAMPLINGS[sampling], "max_tokens": MAX_TOKENS}
        expected = plain(world.target, prompt, **asked)
        out = speculate(world.target, world.draft, "glide", prompt, options=options, **asked)
        assert out.tokens == expected.tokens
        assert out.num_drafted > 0, "inconclusive: nothing was drafted"
        if world.shared.dtype == FLOAT32:
            whole = tiny.local_target(world.whole)
            assert plain(whole, prompt, **asked).tokens == expected.tokens


@pytest.mark.parametrize("layers", [(2, 0), (6, 4)])
async def test_a_reader_of_keys_gets_all_heads_and_one_of_states_all_halves(world, layers):
    targets = [world.target, tiny.local_target(world.whole)]
    prompt, pieces = tuple(tiny.tokens(140)), []
    for target in targets:
        session = Session("reader", len(prompt), 8)
        await target.verify(TokenSequence(session, prompt), Proposal())
        pieces.append(target.kv_sender("reader", layers, 0).take(1000))
        await target.release("reader")
    assert targets[0].layout.num_kv_heads == targets[1].layout.num_kv_heads
    tolerance = 1e-4 if world.shared.dtype == FLOAT32 else 0.15
    assert pieces[0].count == pieces[1].count == 140
    ours, theirs = (as_tensor(np.stack(piece.layers)) for piece in pieces)
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def test_a_service_answers_the_same_and_ends_with_its_follower(model):
    with Client.embedded(str(model), "none", dtype="float32") as client:
        expected = client.generate("the quick brown fox", max_tokens=12).token_ids
    with up(model, "ngram", env=TWO) as process:
        with Client(process.ready(), retries=False) as client:
            assert client.generate("the quick brown fox", max_tokens=12).token_ids == expected
        line = process.until_logged("rank 1 of 2 is process ")
        kill(int(line.rpartition(" ")[2]))
        assert process.wait() == 1
    assert any("error: rank 1 of the target ended by SIGKILL" in line for line in process.err)
    assert process.err[-1].startswith("error: the target ended with exit code 1")


def test_followers_end_with_their_leader_however_it_ends(model):
    flags = ("--model", str(model), "--address", "127.0.0.1:0")
    with serve("target", *flags, env=TWO) as asked, serve("target", *flags, env=TWO) as killed:
        for process, number in ((asked, signal.SIGTERM), (killed, signal.SIGKILL)):
            process.ready()
            follower = process.child("target.tensor_parallel_worker")
            process.signal(number)
            assert process.wait() == (0 if number == signal.SIGTERM else -number)
            while command_line(follower):
                time.sleep(0.01)
