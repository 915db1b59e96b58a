"""The client over a tiny checkpoint: requests, streams, conversations, and what it refuses."""

import pytest

from slipstream.client import (
    Client,
    Mode,
    SamplingParams,
    SpeculationOptions,
    StopPolicy,
)
from slipstream.core.errors import (
    InvalidRequest,
    ModelMismatch,
    UnsupportedCombination,
)
from support.models import tiny_checkpoint

SAMPLED = SamplingParams(temperature=1.0, seed=4)
FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED)
OFF = SpeculationOptions(mode=Mode.OFF)


@pytest.fixture(scope="module")
def ngram(folder):
    with Client.embedded(str(folder), "ngram", dtype="float32") as client:
        yield client


def test_speculation_changes_the_rounds_and_not_the_tokens(embedded):
    fast, plain = (
        embedded.generate("hello", max_tokens=30, speculation=options) for options in (FORCED, OFF)
    )
    assert fast.token_ids == plain.token_ids
    stats = fast.stats.speculation
    assert stats.num_accepted_draft_tokens + stats.num_spec_steps + stats.num_plain_steps + 1 == 30
    assert stats.mean_acceptance_length > 2
    assert plain.stats.speculation.num_draft_tokens == 0
    assert plain.stats.speculation.num_plain_steps == 29


def test_a_stop_string_in_one_turn_does_not_spoil_the_next(embedded):
    with embedded.session() as session:
        whole = embedded.generate("hello", max_tokens=30, sampling=SAMPLED)
        stop = [whole.text[4:6]]
        cut = session.generate("hello", max_tokens=30, stop=stop, sampling=SAMPLED)
        session.generate("more", max_tokens=5)
        again = session.generate("and", max_tokens=5)
    assert again.stats.num_cached_tokens > cut.stats.num_prompt_tokens


def test_a_turn_that_was_never_answered_was_never_said(embedded):
    with embedded.session() as session:
        with pytest.raises(InvalidRequest):
            session.generate("hello", sampling=SamplingParams(logit_bias=((999, 1.0),)))
        result = session.generate("hello", max_tokens=5)
    assert result.token_ids == embedded.generate("hello", max_tokens=5).token_ids
    assert result.stats.num_prompt_tokens < 2 * len("hello") + 5


def test_an_engine_without_a_draft_decodes_plainly_and_says_no_to_more(folder, ngram):
    with Client.embedded(str(folder), "none", dtype="float32") as client:
        result = client.generate("hello", max_tokens=10)
        assert result.token_ids == ngram.generate("hello", max_tokens=10).token_ids
        with pytest.raises(InvalidRequest, match="no draft"):
            client.generate("hello", speculation=SpeculationOptions(mode=Mode.FORCED))


def test_a_policy_that_the_draft_can_not_serve_is_refused(embedded):
    with pytest.raises(UnsupportedCombination):
        embedded.generate("hello", speculation=SpeculationOptions(stop=StopPolicy.DECISION))


NO_OPTIONS = [{"numerics": "exactish"}, {"threads": 0}, {"dtype": "int3"}, {"device": "abacus"}]
NO_OPTIONS += [{"draft": draft} for draft in ("", "glide", "magic", "vanilla:")]


@pytest.mark.parametrize("options", NO_OPTIONS)
def test_drafts_and_engine_options_that_do_not_exist_are_refused(folder, options):
    with pytest.raises(InvalidRequest):
        Client.embedded(str(folder), **{"draft": "none", "dtype": "float32", **options})


def test_glide_weights_are_taken_from_their_directory(folder, tmp_path, ngram):
    weights = tiny_checkpoint.save_draft(folder, tmp_path / "glide")
    with Client.embedded(str(folder), str(weights), dtype="float32") as client:
        result = client.generate("hello", max_tokens=20, speculation=FORCED)
        assert result.stats.speculation.num_draft_tokens > 0
        expected = ngram.generate("hello", max_tokens=20, speculation=OFF)
        assert result.token_ids == expected.token_ids
        with pytest.raises(InvalidRequest, match="at most 4"):
            client.generate("hello", speculation=SpeculationOptions(max_draft_tokens=5))


def test_glide_weights_of_another_tokenizer_are_refused(folder, tmp_path):
    weights = tiny_checkpoint.save_draft(folder, tmp_path / "glide", tokenizer_hash="0" * 64)
    with pytest.raises(ModelMismatch, match="tokenizer"):
        Client.embedded(str(folder), str(weights), dtype="float32")


def test_an_answer_that_was_kept_does_not_know_how_its_tokens_came_about(embedded):
    asked = {"max_tokens": 10, "request_id": "kept"}
    first = embedded.generate("hello", **asked)
    again = embedded.generate("hello", **asked, with_origins=True, logprobs=1)
    assert again.stats.continuity.num_resumed_tokens == 10
    assert again.token_ids == first.token_ids
    assert again.origins == again.logprobs == (None,) * 10
