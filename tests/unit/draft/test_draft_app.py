"""A draft service is what its configuration says, or says what is wrong with that."""

import json
from dataclasses import replace

import pytest
import torch

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.profile import Profile
from slipstream.core.types import Shape, StopPolicy
from slipstream.drafting.profile_file import ModelPair, profile_file
from slipstream.models.format.digests import file_digest
from slipstream.models.torch.loading import load_target_parts
from slipstream.options import build
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.conversion.convert import draft_facts_from_pb
from slipstream.rpc.v1 import draft_pb2
from slipstream_draft.__main__ import load_draft
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_sources import MAX_IDLE, Channels
from support.models import tiny_checkpoint, tiny_eagle


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def weights(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts") / "mine"
    return tiny_checkpoint.save_draft(checkpoint, folder, vocab=torch.arange(40), max_lag=5)


async def about(**options):
    """What a draft that was loaded so says of itself."""
    servicer = load_draft(build(DraftConfig, **{"dtype": "float32", **options}))
    try:
        return await servicer.DescribeDraft(draft_pb2.DescribeDraftRequest(), None)
    finally:
        await servicer.close()


async def test_only_a_draft_of_ngrams_reads_their_files(checkpoint):
    for ngrams in ("auto", "none"):
        assert (await about(draft="ngram", ngrams=(ngrams,))).kind == "ngram"
    with pytest.raises(InvalidRequest, match="ngrams is 'missing', but must be auto, none or"):
        await about(draft="ngram", ngrams=("missing",))
    with pytest.raises(InvalidRequest, match="ngrams is for the draft ngram, but the draft is van"):
        await about(draft=f"vanilla:{checkpoint}", ngrams=("missing",))


async def test_a_glide_draft_says_which_target_and_layers_it_reads(checkpoint, weights):
    said = await about(draft=str(weights), target_model=str(checkpoint), max_sessions=7)
    assert (said.kind, said.identity.model_id, said.target_model_id) == ("glide", "mine", "tiny")
    assert (list(said.target_layers), said.max_lag, said.max_sessions) == ([1], 5, 7)
    layout = said.target_layout
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (2, 2, 8)
    assert said.identity.vocab_size == 259


async def test_a_head_says_which_hidden_states_of_its_target_it_reads(checkpoint, tmp_path):
    folder = tiny_eagle.save_for(tiny_checkpoint.tiny_llama(), tmp_path / "mine")
    said = await about(draft=f"eagle3:{folder}", target_model=str(checkpoint))
    assert (said.kind, said.identity.model_id, said.target_model_id) == (
        *("eagle3", "eagle3:mine"),
        "tiny",
    )
    assert (list(said.target_layers), said.target_layout.hidden_size) == ([2, 3, 4], 32)


@pytest.mark.parametrize("draft", ["glide", "vanilla"])
async def test_a_draft_says_what_its_profile_file_says(checkpoint, weights, draft, tmp_path):
    named = str(weights) if draft == "glide" else f"vanilla:{checkpoint}"
    digests = {"model.safetensors": file_digest(weights / "model.safetensors")}
    loaded = load_target_parts(str(checkpoint), dtype="float32")
    kind, own = ("glide", digests) if draft == "glide" else ("vanilla:tiny", {})
    pair = ModelPair("tiny", kind, loaded.tokenizer_hash, own)
    tuned = Profile(Shape.CHAIN, StopPolicy.COST, 0.25, threshold_sampled=0.5, max_depth=3)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_file(tuned, pair, {})))
    said = await about(draft=named, target_model=str(checkpoint), profile=path)
    assert draft_facts_from_pb(said).profile == tuned
    path.write_text(json.dumps(profile_file(tuned, replace(pair, draft="other"), {})))
    with pytest.raises(ModelMismatch, match="is for draft 'other'"):
        await about(draft=named, target_model=str(checkpoint), profile=path)


async def test_a_glide_draft_that_reads_no_layers_is_of_no_particular_target(checkpoint, tmp_path):
    vocab = {"vocab": torch.arange(40), "layers": (), "max_lag": 0}
    folder = tiny_checkpoint.save_draft(checkpoint, tmp_path / "mine", **vocab)
    said = await about(draft=str(folder), target_model=str(checkpoint))
    assert (said.kind, list(said.target_layers), said.target_model_id) == ("glide", [], "")
    assert said.identity.tokenizer_hash
    assert not said.HasField("max_lag")
    assert said.profile.max_depth > 5, "no lag limits its depth"


async def test_a_plain_draft_says_how_it_numbers_tokens(checkpoint):
    said = await about(draft=f"vanilla:{checkpoint}", target_model="no such model")
    loaded = load_target_parts(str(checkpoint), dtype="float32")
    assert (said.kind, said.identity.tokenizer_hash) == ("vanilla", loaded.tokenizer_hash)
    assert (list(said.target_layers), said.target_model_id) == ([], "")
    assert not said.HasField("max_lag")


async def test_a_draft_that_is_none_or_of_another_target_is_refused(checkpoint, weights, tmp_path):
    for name in ("none", "", "no-such-draft"):
        with pytest.raises(InvalidRequest):
            await about(draft=name, target_model=str(checkpoint))


async def test_few_unused_channels_stay_open():
    channels = Channels(ChannelOptions())
    for at in range(3 * MAX_IDLE):
        address = f"127.0.0.1:{1000 + at}"
        async with channels.to(address) as first, channels.to(address) as second:
            assert second is first
        assert len(channels._open) == min(at + 1, MAX_IDLE)
    async with channels.to(address) as again:
        assert again is first
    await channels.close()
    assert len(channels._open) == 0
