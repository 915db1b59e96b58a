"""What OpenAI's own client gets from the HTTP front: the texts of the SDK, and all about them."""

import httpx2
import openai
import pytest

from slipstream.client import SamplingParams, SpeculationOptions
from support.services.http_front import chat, completion

LIKELY = {"seed": 7, "temperature": 0.8, "top_p": 0.9}
# In `auto` the number of rounds is a matter of what they cost at the moment.
ALWAYS = {"mode": "forced", "shape": "chain", "stop": "fixed", "max_draft_tokens": 3}
SAME_ROUNDS = {**LIKELY, "extra_body": {"speculation": ALWAYS}}
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=7)


def test_a_chat_says_what_the_sdk_gets_with_the_same_seed(client, sdk):
    answer = chat(client, **LIKELY)
    result = sdk.generate("hello", sampling=SAMPLED, max_tokens=12)
    (choice,) = answer.choices
    assert choice.message.content == result.text
    assert (choice.message.role, choice.finish_reason) == ("assistant", result.finish_reason)
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.id.startswith("chatcmpl-")
    assert answer.id.endswith(answer._request_id)


def test_a_completion_takes_its_prompt_as_it_is(client, sdk):
    answer = completion(client, **LIKELY)
    result = sdk.generate("hello", raw=True, sampling=SAMPLED, max_tokens=12)
    assert answer.choices[0].text == result.text
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "length")
    ids = list(sdk.tokenize("hello", raw=True))
    for same in (ids, ["hello"], [ids]):
        assert completion(client, same, **LIKELY).choices[0].text == result.text


def test_a_stream_says_who_speaks_then_the_text_then_why_it_ends(client):
    whole = chat(client, **SAME_ROUNDS)
    first, *middle, last = chat(client, stream=True, **SAME_ROUNDS)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(part.choices[0].delta.content for part in middle) == (
        whole.choices[0].message.content
    )
    assert {part.choices[0].finish_reason for part in (first, *middle)} == {None}
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert {part.id for part in (first, *middle, last)} == {first.id}
    assert first.object == "chat.completion.chunk"
    assert last.usage is None
    assert last.metrics == whole.metrics


def test_usage_comes_last_where_a_stream_is_asked_for_it(client):
    whole = chat(client, **SAME_ROUNDS)
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = chat(client, **asked, **SAME_ROUNDS)
    assert [part.usage for part in parts] == [None] * len(parts)
    assert parts[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 12
    assert last.metrics == whole.metrics


def test_usage_and_metrics_are_the_statistics_of_the_sdk(client, sdk):
    answer = chat(client, temperature=0, extra_body={"speculation": ALWAYS})
    stats = sdk.generate("hello", max_tokens=12, speculation=SpeculationOptions(**ALWAYS)).stats
    told = stats.speculation
    assert told.num_accepted_draft_tokens > 0
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (stats.num_prompt_tokens, 12)
    assert usage.total_tokens == stats.num_prompt_tokens + 12
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == told.num_accepted_draft_tokens
    rejected = told.num_draft_tokens - told.num_accepted_draft_tokens
    assert details.rejected_prediction_tokens == rejected
    shown = answer.metrics["speculative_decoding"]
    assert shown["mean_acceptance_length"] == told.mean_acceptance_length
    assert shown["per_step_accepted"] == list(told.per_step_accepted)
    histogram = {int(key): count for key, count in shown["acceptance_histogram"].items()}
    assert histogram == told.acceptance_histogram


def test_a_prompt_that_was_read_before_counts_as_cached(client):
    messages = [{"role": "user", "content": "a prompt of which nobody has heard"}]
    first, again = (chat(client, messages, temperature=0) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens < first.usage.prompt_tokens - 1
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1


def test_without_a_seed_texts_differ_unless_the_request_has_the_same_name(client):
    assert len({chat(client).choices[0].message.content for _ in range(3)}) == 3
    name = {"Idempotency-Key": "the-same-one"}
    first, again = (chat(client, extra_headers=name) for _ in range(2))
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.id == again.id == "chatcmpl-the-same-one"
    assert first._request_id == "the-same-one"


def test_an_id_that_a_proxy_sets_is_shown_again_and_names_no_request(client):
    proxied = {"x-request-id": "of-a-mesh"}
    answers = [
        chat(client, [{"role": "user", "content": content}], extra_headers=proxied)
        for content in ("hello", "something else", "hello")
    ]
    assert {answer._request_id for answer in answers} == {"of-a-mesh"}
    assert len({answer.id for answer in answers}) == 3
    assert len({answer.choices[0].message.content for answer in answers}) == 3


def test_a_name_of_another_request_is_refused_in_one_sentence(client):
    name = {"Idempotency-Key": "taken-by-another"}
    assert chat(client, extra_headers=name, max_tokens=2).choices
    with pytest.raises(openai.ConflictError, match="'taken-by-another' is that of another") as told:
        chat(client, [{"role": "user", "content": "else"}], extra_headers=name, max_tokens=2)
    assert (told.value.code, told.value.request_id) == ("conflict", "taken-by-another")


def test_stop_strings_end_the_text_and_are_no_part_of_it(client):
    text = chat(client, **LIKELY).choices[0].message.content
    stop = text[6:8]
    for given in (stop, [stop, "no such text"]):
        choice = chat(client, stop=given, **LIKELY).choices[0]
        assert choice.message.content == text[: text.index(stop)]
        assert choice.finish_reason == "stop"


def test_every_parameter_reaches_the_law(client, sdk):
    asked = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {"70": 8.0}}
    ours = {"top_k": 40, "min_p": 0.001, "repetition_penalty": 1.3}
    law = SamplingParams(temperature=1.0, seed=5, **{**asked, **ours, "logit_bias": ((70, 8.0),)})
    answer = chat(client, seed=5, **asked, extra_body=ours)
    expected = sdk.generate("hello", sampling=law, max_tokens=12).text
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].message.content != chat(client, seed=5).choices[0].message.content


def test_how_to_speculate_is_said_in_an_extra_field_and_changes_no_text(client):
    off, forced = (
        chat(client, extra_body={"speculation": asked}, **LIKELY)
        for asked in ({"mode": "off"}, {"mode": "forced", "max_draft_tokens": 3, "shape": "chain"})
    )
    assert off.choices[0].message.content == forced.choices[0].message.content
    assert off.metrics["speculative_decoding"]["num_spec_steps"] == 0
    assert off.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert forced.metrics["speculative_decoding"]["num_spec_tokens"] == 3


def test_models_are_listed_and_found_by_name(client):
    (listed,) = client.models.list().data
    assert (listed.id, listed.object, listed.owned_by) == ("tiny", "model", "slipstream")
    assert client.models.retrieve("tiny") == listed
    with pytest.raises(openai.NotFoundError, match="no-such-model") as raised:
        client.models.retrieve("no-such-model")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        chat(client, model="no-such-model")


def test_the_api_is_described_with_what_bodies_may_say(url):
    about = httpx2.get(f"{url}/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(about["paths"])
    fields = about["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "speculation", "top_logprobs"} <= set(fields)
