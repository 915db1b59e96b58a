"""Every field of the table of bodies has the outcome that docs/compatibility.md states."""

from pathlib import Path

import pytest
import yaml

from reference.compatibility_page import BODIES, names
from slipstream_gateway.errors import IGNORED, NEUTRAL
from support.services.http_front import HELLO, chat, completion, error_in, post

DRAFT = "ngram"
CHAT = {"messages": HELLO, "max_tokens": 4, "add_special_tokens": False}
ROUTES = {
    "chats": ("/v1/chat/completions", CHAT),
    "completions": (
        "/v1/completions",
        {"prompt": "x", "max_tokens": 4, "add_special_tokens": True},
    ),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 4, "store": False}),
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}
GIVEN = yaml.safe_load(Path(__file__).with_name("honoured.yaml").read_text())
HONOURED = {name: values for names_, values in GIVEN.items() for name in names_.split()}
OTHERS = ("speculation.", "response_format.", "structured_outputs.", "text.format.")
NOWHERE = {"a": ["value"], "that": ["is", 77]}


def at(path, value):
    *heads, last = path.split(".")
    body = {last: value}
    for head in reversed(heads):
        body = {head: body}
    return body


def text_in(answer):
    assert answer.status_code == 200, answer.text
    value = answer.json()
    if "output" in value:
        return [part["text"] for item in value["output"] for part in item["content"]]
    return [choice.get("text") or choice["message"]["content"] for choice in value["choices"]]


def table(body, fields=NEUTRAL):
    """The fields of the table that neither the model of a body has, nor a field that is ignored."""
    known = BODIES[body].model_fields
    read = [name for name in fields if name not in known]
    ignored = set(IGNORED).difference(known)
    return [name for name in read if "." not in name or name.split(".")[0] not in ignored]


def test_a_last_message_of_the_assistant_goes_on_where_the_body_says_so(url):
    def tokens(reply, *, prefix=False, **more):
        reply = {"role": "assistant", "content": reply, "prefix": prefix}
        messages = [{"role": "user", "content": "x"}, reply]
        body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, **more}
        return post(url, body)

    one = tokens("Once", continue_final_message=True, add_generation_prompt=False)
    two = tokens("Once upon", continue_final_message=True)
    assert one.status_code == two.status_code == 200
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in (one, two)]
    assert counts[1] - counts[0] == len(" upon")
    marked = tokens("Once upon", prefix=True).json()["usage"]["prompt_tokens"]
    assert marked == counts[1] < tokens("Once upon").json()["usage"]["prompt_tokens"]
    assert tokens("Once", add_generation_prompt=False).status_code == 400


def with_all(body, values):
    """A body with all of these values, by their paths."""
    given = dict(body)
    for name, value in values.items():
        head, _, last = name.partition(".")
        given[head] = {**given.get(head, {}), last: value} if last else value
    return given


@pytest.mark.parametrize("body", ROUTES)
def test_what_is_ignored_or_neutral_changes_no_answer(url, body):
    path, valid = ROUTES[body]
    plain = {**valid, "temperature": 0}
    expected = text_in(post(url, plain, path))
    neutral = {name: (None, *NEUTRAL[name]) for name in table(body)}
    for number, ignored in enumerate((None, True, 0, 1.5, "x", [], {"a": 1}, -1, "")):
        values = {name: those[number % len(those)] for name, those in neutral.items()}
        given = with_all(plain, dict.fromkeys(table(body, IGNORED), ignored) | values)
        assert text_in(post(url, given, path)) == expected, number
    assert max(map(len, neutral.values())) <= 9  # so that all had their turn


@pytest.mark.parametrize("body", ROUTES)
def test_what_is_not_neutral_is_refused_by_name(url, body):
    path, valid = ROUTES[body]
    for name in table(body):
        answer = post(url, {**valid, **at(name, NOWHERE)}, path)
        assert (answer.status_code, error_in(answer)["param"]) == (400, name)
        assert error_in(answer)["message"].startswith(f"{name} can't be honoured here")


@pytest.mark.parametrize("body", ROUTES)
def test_every_honoured_field_is_taken(url, body):
    path, valid = ROUTES[body]
    for name in names(BODIES[body]):
        if name.startswith(OTHERS):
            continue
        for value in (None, *HONOURED[name]):
            if value is None and name in ("messages", "prompt", "input"):
                continue
            answer = post(url, {**valid, **at(name, value)}, path)
            assert answer.status_code == 200, (name, value, answer.text)


@pytest.mark.parametrize("body", ROUTES)
@pytest.mark.parametrize("place", ["colour", "stream_options.colour", "speculation.colour"])
def test_a_name_on_no_list_is_refused_unless_it_has_nothing(url, body, place):
    path, valid = ROUTES[body]
    for value in (1, 0, False, "x", None, "", [], {}):
        answer = post(url, {**valid, **at(place, value)}, path)
        if value is None or (value in ("", [], {}) and "." not in place):
            assert answer.status_code == 200
        else:
            assert (answer.status_code, error_in(answer)["param"]) == (400, place)


MESSAGE = {"role": "assistant", "content": "Hello."}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
EXTRAS = (
    *("name", "id", "reasoning_content", "reasoning", "refusal", "annotations", "audio"),
    *("function_call", "cache_control", "index", "status", "x_unknown"),
)
VALUES = (None, "", "x", 0, 1, True, [], [{"a": 1}], {}, {"type": "ephemeral"})


@pytest.mark.parametrize("name", EXTRAS)
def test_further_fields_of_the_history_are_taken_at_every_place(url, name):
    for value in VALUES if name != "function_call" else VALUES[:2]:
        more = {name: value}
        function = {**CALL["function"], **({} if name == "name" else more)}
        calls = [{**CALL, **({} if name == "id" else more), "function": function}]
        part = {"type": "text", "text": "a", **more}
        schema = {**FUNCTION, **({} if name == "name" else more)}
        talk = [
            {"role": "user", "content": [part], **more},
            {**MESSAGE, "tool_calls": calls, **more},
            {"role": "tool", "tool_call_id": "1", "content": "x", **more},
        ]
        tools = [{"type": "function", "function": schema, **more}]
        answer = post(url, {"messages": talk, "tools": tools, "max_tokens": 2})
        assert answer.status_code == 200, (value, answer.text)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_empty_content_is_an_empty_text_in_every_role(url, role):
    empty = [{"role": role, **it} for it in ({}, {"content": None}, {"content": []})]
    whole = [{"role": role, "content": ""}, *HELLO]
    counts = {
        post(url, {"messages": [message, *HELLO]}, "/tokenize").json()["count"]
        for message in (*empty, {"role": role, "content": [{"type": "text", "text": ""}]})
    }
    assert counts == {post(url, {"messages": whole}, "/tokenize").json()["count"]}


CALLS = [
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "status": "x"},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c"}]},
]


@pytest.mark.parametrize("call", CALLS)
def test_items_of_reasoning_and_of_earlier_answers_are_read(url, call):
    replayed = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello", "x": 1}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None},
        {
            "type": "message",
            "id": "m",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "because"}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "1", "id": "o", "status": None},
    ]
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        *HELLO,
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "content": "1"},
    ]
    path, valid = ROUTES["responses"]
    given = post(url, {**valid, "temperature": 0, "input": replayed}, path)
    same = post(url, {"messages": talk, "max_tokens": 4, "temperature": 0})
    assert text_in(given) == text_in(same)


@pytest.mark.parametrize("prompt", [["hello", "more"], [[5, 6], [7]], ["hello", [5, 6], "hello"]])
def test_several_prompts_have_the_answers_of_each_alone(client, prompt):
    asked = {"temperature": 0.8, "seed": 3, "n": 2, "logprobs": 1}
    whole = completion(client, prompt, **asked)
    alone = [completion(client, [one], **asked) for one in prompt]
    expected = [choice for answer in alone for choice in answer.choices]
    assert [choice.text for choice in whole.choices] == [choice.text for choice in expected]
    assert [choice.logprobs for choice in whole.choices] == [it.logprobs for it in expected]
    assert [choice.index for choice in whole.choices] == list(range(2 * len(prompt)))
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(whole.usage, name) == sum(getattr(it.usage, name) for it in alone)
    texts = dict.fromkeys(range(2 * len(prompt)), "")
    last = None
    options = {"include_usage": True}
    for part in completion(client, prompt, stream=True, stream_options=options, **asked):
        last = part
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in expected]
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_prompts_without_a_seed_have_seeds_of_their_own_and_echoes_theirs(client):
    answer = completion(client, ["hello", "hello", "more"], echo=True)
    first, second, third = (choice.text for choice in answer.choices)
    assert first != second
    assert [first[:5], second[:5], third[:4]] == ["hello", "hello", "more"]


def test_more_prompts_than_run_at_once_are_answered_in_order(client):
    prompts = [f"number {number}" for number in range(40)]
    answer = completion(client, prompts, max_tokens=1, echo=True)
    assert all(map(str.startswith, (choice.text for choice in answer.choices), prompts))


@pytest.mark.parametrize("ask", [chat, completion])
def test_running_usage_is_in_every_part_and_ends_with_the_whole(client, ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"stream": True, "stream_options": options, "extra_body": {"ignore_eos": True}}
    parts = list(ask(client, **asked))
    counts = [part.usage.completion_tokens for part in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert {part.usage.prompt_tokens for part in parts} == {parts[-1].usage.prompt_tokens}


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 6}])
def test_a_text_goes_on_behind_its_end_where_the_end_is_ignored(url, sdk, more):
    end = sdk.model_info("tiny").stop_token_ids[0]
    body = {"messages": HELLO, "max_tokens": 6, "logit_bias": {str(end): 100}}
    counts = [
        post(url, {**body, **asked}).json()["usage"]["completion_tokens"] for asked in ({}, more)
    ]
    assert counts == [1, 6]


def test_a_text_without_a_limit_goes_on_to_the_end_of_the_context(url, sdk):
    body = {"prompt": "hello", "max_tokens": -1, "ignore_eos": True}
    usage = post(url, body, "/v1/completions").json()["usage"]
    assert usage["total_tokens"] == sdk.model_info("tiny").limits.context_length


def test_further_tokens_end_a_text(url):
    body = {"prompt": "hello", "logit_bias": {"70": 100}, "stop_token_ids": [70]}
    (choice,) = post(url, body, "/v1/completions").json()["choices"]
    assert (choice["finish_reason"], len(choice["text"])) == ("stop", 1)
