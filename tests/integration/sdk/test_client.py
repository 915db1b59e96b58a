"""The client over a tiny checkpoint: requests, streams, conversations, and what it refuses."""

import pytest

from slipstream.client import (
    Client,
    FinishReason,
    Mode,
    SamplingParams,
    Shape,
    SpeculationOptions,
    StopPolicy,
    Verification,
)
from slipstream.core.errors import (
    InvalidRequest,
    ModelMismatch,
    PromptTooLong,
    SessionClosed,
    UnsupportedCombination,
    WeightsError,
)
from support.models import tiny_checkpoint

SAMPLED = SamplingParams(temperature=1.0, seed=4)
FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED)
OFF = SpeculationOptions(mode=Mode.OFF)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def ngram(folder):
    with Client.embedded(str(folder), "ngram", dtype="float32") as client:
        yield client


@pytest.fixture(scope="module")
def vanilla(folder):
    with Client.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        yield client


def test_speculation_changes_the_rounds_and_not_the_tokens(vanilla):
    fast, plain = (
        vanilla.generate("hello", max_tokens=30, speculation=options) for options in (FORCED, OFF)
    )
    assert fast.token_ids == plain.token_ids
    stats = fast.stats.speculation
    assert stats.num_accepted_draft_tokens + stats.num_spec_steps + stats.num_plain_steps + 1 == 30
    assert stats.mean_acceptance_length > 2
    assert plain.stats.speculation.num_draft_tokens == 0
    assert plain.stats.speculation.num_plain_steps == 29


def test_the_same_seed_repeats_and_another_differs(vanilla):
    def tokens(seed):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        return vanilla.generate("hello", max_tokens=30, sampling=sampling).token_ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_statistics_add_up(vanilla):
    stats = vanilla.generate("hello", max_tokens=20).stats
    speculation = stats.speculation
    assert sum(speculation.acceptance_histogram.values()) == speculation.num_spec_steps
    assert sum(speculation.per_step_drafted) == speculation.num_draft_tokens
    assert stats.timings.draft_s + stats.timings.verify_s <= stats.timings.decode_s
    assert stats.num_prompt_tokens > len("hello")


def test_text_ends_before_a_stop_string(vanilla):
    whole = vanilla.generate("hello", max_tokens=30, sampling=SAMPLED)
    stop = whole.text[4:6]
    cut = vanilla.generate("hello", max_tokens=30, stop=[stop], sampling=SAMPLED)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_a_limit_is_exact_and_said_to_be_the_reason(vanilla):
    for count in (1, 2, 7):
        result = vanilla.generate("hello", max_tokens=count)
        if result.finish_reason is FinishReason.LENGTH:
            assert len(result.token_ids) == count


def test_a_later_turn_keeps_what_was_said_and_its_caches(vanilla):
    with vanilla.session() as session:
        first = session.generate("nobody said this before", max_tokens=12)
        second = session.generate("more", max_tokens=12)
    assert first.stats.num_cached_tokens < first.stats.num_prompt_tokens - 12
    said = first.stats.num_prompt_tokens + first.stats.num_output_tokens
    assert said - 1 <= second.stats.num_cached_tokens <= said
    assert second.stats.num_prompt_tokens > said


def test_a_conversation_is_the_same_with_and_without_speculation(vanilla):
    spoken = []
    for options in (SpeculationOptions(mode=Mode.FORCED), OFF):
        with vanilla.session() as session:
            spoken.append(
                [
                    session.generate(turn, max_tokens=10, speculation=options).token_ids
                    for turn in ("one", "two", "three")
                ]
            )
    assert spoken[0] == spoken[1]


def test_a_stop_string_in_one_turn_does_not_spoil_the_next(vanilla):
    with vanilla.session() as session:
        whole = vanilla.generate("hello", max_tokens=30, sampling=SAMPLED)
        stop = [whole.text[4:6]]
        cut = session.generate("hello", max_tokens=30, stop=stop, sampling=SAMPLED)
        session.generate("more", max_tokens=5)
        again = session.generate("and", max_tokens=5)
    assert again.stats.num_cached_tokens > cut.stats.num_prompt_tokens


def test_a_turn_that_was_never_answered_was_never_said(vanilla):
    with vanilla.session() as session:
        with pytest.raises(InvalidRequest):
            session.generate("hello", sampling=SamplingParams(logit_bias=((999, 1.0),)))
        result = session.generate("hello", max_tokens=5)
    assert result.token_ids == vanilla.generate("hello", max_tokens=5).token_ids
    assert result.stats.num_prompt_tokens < 2 * len("hello") + 5


def test_a_closed_session_is_refused(vanilla):
    session = vanilla.session()
    session.close()
    with pytest.raises(SessionClosed):
        session.generate("hello")


def test_an_engine_without_a_draft_decodes_plainly_and_says_no_to_more(folder, ngram):
    with Client.embedded(str(folder), "none", dtype="float32") as client:
        result = client.generate("hello", max_tokens=10)
        assert result.token_ids == ngram.generate("hello", max_tokens=10).token_ids
        with pytest.raises(InvalidRequest, match="no draft"):
            client.generate("hello", speculation=SpeculationOptions(mode=Mode.FORCED))


@pytest.mark.parametrize(
    "prompt", ["", "  ", [], [999], [-1], [{"role": "user"}], [{"role": "user", "content": 3}]]
)
def test_a_prompt_that_is_none_is_refused(vanilla, prompt):
    with pytest.raises(InvalidRequest):
        vanilla.generate(prompt)


def test_a_prompt_that_leaves_no_room_is_refused(vanilla):
    with pytest.raises(PromptTooLong, match="context of 128"):
        vanilla.generate("x" * 120, max_tokens=20)


@pytest.mark.parametrize(
    "options",
    [
        SpeculationOptions(shape=Shape.FORK),
        SpeculationOptions(verification=Verification.TARGET_INIT, shape=Shape.CHAIN),
        SpeculationOptions(verification=Verification.MCSD, shape=Shape.DYNAMIC),
        SpeculationOptions(stop=StopPolicy.DECISION),
    ],
)
def test_options_that_do_not_go_together_are_refused(vanilla, options):
    with pytest.raises(UnsupportedCombination):
        vanilla.generate("hello", speculation=options)


def test_a_lossy_mode_says_so(vanilla):
    lossy = SpeculationOptions(verification=Verification.TARGET_INIT)
    assert not vanilla.generate("hello", max_tokens=8, speculation=lossy).lossless
    assert vanilla.generate("hello", max_tokens=8).lossless


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


def test_a_broken_weights_file_is_refused(folder, tmp_path):
    weights = tiny_checkpoint.save_draft(folder, tmp_path / "glide")
    file = weights / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(WeightsError):
        Client.embedded(str(folder), str(weights), dtype="float32")


def test_an_answer_that_was_kept_does_not_know_how_its_tokens_came_about(vanilla):
    asked = {"max_tokens": 10, "request_id": "kept"}
    first = vanilla.generate("hello", **asked)
    again = vanilla.generate("hello", **asked, with_origins=True, logprobs=1)
    assert again.stats.continuity.num_resumed_tokens == 10
    assert again.token_ids == first.token_ids
    assert again.origins == again.logprobs == (None,) * 10
