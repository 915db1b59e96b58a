"""A plain draft of other sizes than its target's, a head, or one that fails costs no token."""

import logging
import time
from dataclasses import replace

import pytest

from slipstream.client import (
    Client,
    Mode,
    SamplingParams,
    SpeculationOptions,
    StopPolicy,
    Verification,
)
from slipstream.client.embedded import Embedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import ModelError
from slipstream.core.policy.profile import DraftFacts, Profile
from slipstream.core.types import Shape
from slipstream.drafting.build import Drafter
from slipstream.models.native import library
from support.models import tiny_checkpoint, tiny_eagle, tiny_gguf
from support.services.cluster import running
from support.services.fleet import num_ready
from support.services.processes import up

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, lookup=False)
OFF = SpeculationOptions(mode=Mode.OFF)
ADDED = tuple(f"<added {number}>" for number in range(40))
SIZES = {
    "larger head": ({}, {"vocab_size": 320}),
    "smaller head": ({"vocab_size": 320}, {}),
    "shorter context": ({}, {"context_length": 40}),
    "added tokens": ({}, {"vocab_size": 299, "added": ADDED}),
    "fewer added ones": ({"vocab_size": 299, "added": ADDED}, {"vocab_size": 264}),
    "GGUF files": ({"more": tiny_gguf.padded(132)}, {"more": tiny_gguf.padded(4)}),
}
"""Changes of a target and of a draft, by what a draft has that the target does not."""


def save(folder, changes):
    """Save a model; return its path."""
    if "more" in changes:
        return tiny_gguf.write(folder / "model.gguf", lambda _: "Q4_0", "qwen2", **changes)
    return tiny_checkpoint.save_checkpoint(folder, **changes)


@pytest.fixture(scope="module", params=SIZES)
def pair(request, tmp_path_factory):
    """A target and a draft of one tokenizer, whose sizes differ as the name says."""
    paths = [
        save(tmp_path_factory.mktemp(role), changes)
        for role, changes in zip(("target", "draft"), SIZES[request.param], strict=True)
    ]
    return request.param, *paths


@pytest.fixture(scope="module", params=["embedded", "services"])
def client(request, pair):
    """A client of a target with that draft."""
    _, target, draft = pair
    if request.param == "embedded":
        dtype = "auto" if target.suffix else "float32"  # blocks are computed as they are
        with Client.embedded(str(target), f"vanilla:{draft}", dtype=dtype) as client:
            yield client
        return
    with running(target, f"vanilla:{draft}") as cluster, Client(cluster.address) as client:
        while num_ready(client.server_info(), "draft") < 1:
            time.sleep(0.01)
        yield client


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
def test_blocks_of_both_files_are_computed_as_they_are(tmp_path):
    for name, count in (("target", 132), ("draft", 4)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, {"more": tiny_gguf.padded(count)})
    engine = Engine.load(str(tmp_path / "target"), EngineOptions())
    model = engine.draft_model(f"vanilla:{tmp_path / 'draft'}")
    assert engine.model.engine == model.engine and model.engine.startswith("native")
    assert engine.model.weights_type == "Q4_0"
    assert model.memory.weight_bytes < engine.model.weight_bytes


@pytest.mark.parametrize("verification", [Verification.EXACT, Verification.MCSD])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_draft_of_another_size_drafts_what_it_can(client, pair, temperature, verification):
    speculation = replace(FORCED, verification=verification, drafter="vanilla")
    last = client.model_info().vocab_size - 1
    # Never the end of the text, and now and then the last token of the target's head.
    bias = ((0, -100.0), (last, 5.0 if temperature else 0.0))
    sampling = SamplingParams(temperature=temperature, seed=2, logit_bias=bias)
    result, plain = (
        client.generate([5, 80, 6], max_tokens=80, sampling=sampling, speculation=how)
        for how in (speculation, OFF)
    )
    if verification is Verification.EXACT:
        assert result.token_ids == plain.token_ids
    if temperature:
        assert last in result.token_ids
    assert len(result.token_ids) == 80
    stats = result.stats.speculation
    assert stats.num_draft_tokens > 0
    if pair[0] == "shorter context":
        # Up to 40 of 83 tokens are drafted behind, and the last round of all is plain.
        assert 40 <= stats.fallbacks.pop("context") <= 43
    assert stats.fallbacks == {}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_head_by_name_drafts_behind_a_target_that_keeps_what_it_reads(tmp_path, temperature):
    target = str(tiny_checkpoint.save_checkpoint(tmp_path / "target"))
    head = tiny_eagle.save_for(tiny_checkpoint.tiny_llama(), tmp_path / "head")
    with Client.embedded(target, f"eagle3:{head}", dtype="float32") as client:
        asked = {"max_tokens": 80, "sampling": SamplingParams(temperature=temperature, seed=2)}
        result, plain = (
            client.generate([5, 80, 6], **asked, speculation=how) for how in (FORCED, OFF)
        )
    assert result.token_ids == plain.token_ids
    assert result.stats.speculation.num_draft_tokens > 0
    assert result.stats.speculation.fallbacks == {}


def test_services_that_up_starts_draft_with_a_head_and_its_own_layers(tmp_path):
    target = tiny_checkpoint.save_checkpoint(tmp_path / "target")
    head = tiny_eagle.save_for(tiny_checkpoint.tiny_llama(), tmp_path / "head")
    with up(target, f"eagle3:{head}") as process, Client(process.ready()) as client:
        asked = {"max_tokens": 40, "sampling": SamplingParams(temperature=0.0)}
        result, plain = (
            client.generate([5, 80, 6], **asked, speculation=how) for how in (FORCED, OFF)
        )
    assert result.token_ids == plain.token_ids
    assert result.stats.speculation.num_draft_tokens > 0


class Failing:
    """A draft that never proposes anything."""

    def __init__(self, error):
        self.error = error
        self.num_asked = 0

    async def propose(self, sequence, plan):
        self.num_asked += 1
        raise self.error

    async def release(self, session_id):
        raise self.error


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target"))
    return Engine.load(str(folder), EngineOptions(dtype="float32"))


@pytest.mark.parametrize("error", [IndexError("index 24"), ModelError("no numbers")], ids=repr)
def test_what_a_draft_of_this_process_raises_is_no_error_of_the_request(engine, error, caplog):
    draft, facts = Failing(error), DraftFacts("vanilla", Profile(shape=Shape.CHAIN, max_depth=4))
    client = Client.of(Embedded(engine, Drafter(draft, facts)))
    with client, caplog.at_level(logging.WARNING):
        result = client.generate([5, 80, 6], max_tokens=40, speculation=FORCED)
        plain = client.generate([5, 80, 6], max_tokens=40, speculation=OFF)
    assert result.token_ids == plain.token_ids
    stats = result.stats.speculation
    assert set(stats.fallbacks) == {"failed"}
    assert stats.num_plain_steps == len(result.token_ids) - 1
    assert 1 <= draft.num_asked <= stats.fallbacks["failed"] <= stats.num_plain_steps
    told = [one.getMessage() for one in caplog.records if "goes on without" in one.getMessage()]
    assert len(told) == 1
    assert "vanilla" in told[0] and str(error) in told[0]
