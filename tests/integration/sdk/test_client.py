"""The client over a tiny checkpoint: requests, streams, conversations, and what it refuses."""

import pytest

from slipstream.client import (
    Client,
    FinishReason,
    Mode,
    SamplingParams,
    SpeculationOptions,
    StopPolicy,
    Verification,
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


def test_the_same_seed_repeats_and_another_differs(embedded):
    def tokens(seed):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        return embedded.generate("hello", max_tokens=30, sampling=sampling).token_ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_statistics_add_up(embedded):
    stats = embedded.generate("hello", max_tokens=20).stats
    speculation = stats.speculation
    assert sum(speculation.acceptance_histogram.values()) == speculation.num_spec_steps
    assert sum(speculation.per_step_drafted) == speculation.num_draft_tokens
    assert stats.timings.draft_s + stats.timings.verify_s <= stats.timings.decode_s
    assert stats.num_prompt_tokens > len("hello")


def test_text_ends_before_a_stop_string(embedded):
    whole = embedded.generate("hello", max_tokens=30, sampling=SAMPLED)
    stop = whole.text[4:6]
    cut = embedded.generate("hello", max_tokens=30, stop=[stop], sampling=SAMPLED)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_a_limit_is_exact_and_said_to_be_the_reason(embedded):
    for count in (1, 2, 7):
        result = embedded.generate("hello", max_tokens=count)
        if result.finish_reason is FinishReason.LENGTH:
            assert len(result.token_ids) == count


def test_a_conversation_is_the_same_with_and_without_speculation(embedded):
    spoken = []
    for options in (SpeculationOptions(mode=Mode.FORCED), OFF):
        with embedded.session() as session:
            spoken.append(
                [
                    session.generate(turn, max_tokens=10, speculation=options).token_ids
                    for turn in ("one", "two", "three")
                ]
            )
    assert spoken[0] == spoken[1]


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


def test_a_lossy_mode_says_so(embedded):
    lossy = SpeculationOptions(verification=Verification.TARGET_INIT)
    assert not embedded.generate("hello", max_tokens=8, speculation=lossy).lossless
    assert embedded.generate("hello", max_tokens=8).lossless


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
