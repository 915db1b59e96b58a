"""What the HTTP front tells of tokens, what its texts follow, and that its page is right."""

import json
import re
import shlex
from pathlib import Path

import httpx2
import jsonschema

from slipstream.client import SamplingParams
from support.services.http_front import chat, completion

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
LIKELY = {"seed": 7, "temperature": 0.8, "top_p": 0.9}
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=7)


def test_log_probabilities_are_those_of_the_sdk(client, sdk):
    answer = chat(client, logprobs=True, top_logprobs=3, **LIKELY)
    result = sdk.generate("hello", sampling=SAMPLED, max_tokens=12, logprobs=3)
    shown = answer.choices[0].logprobs.content
    assert [token.logprob for token in shown] == [token.logprob for token in result.logprobs]
    assert [bytes(token.bytes) for token in shown] == [token.text for token in result.logprobs]
    assert b"".join(bytes(token.bytes) for token in shown).decode(errors="replace") == result.text
    for token, told in zip(shown, result.logprobs, strict=True):
        assert token.token == told.text.decode(errors="replace")
        likeliest = [(other.logprob, bytes(other.bytes)) for other in token.top_logprobs]
        assert likeliest == [(other.logprob, other.text) for other in told.top]
        assert len(likeliest) == 3
    parts = [
        token
        for part in chat(client, logprobs=True, top_logprobs=3, stream=True, **LIKELY)
        if part.choices[0].logprobs
        for token in part.choices[0].logprobs.content
    ]
    assert parts == shown


def test_a_completion_has_log_probabilities_in_the_older_shape(client, sdk):
    (choice,) = completion(client, logprobs=2, **LIKELY).choices
    told = sdk.generate("hello", raw=True, sampling=SAMPLED, max_tokens=12, logprobs=2).logprobs
    shown = choice.logprobs
    assert shown.token_logprobs == [token.logprob for token in told]
    assert len(shown.tokens) == len(shown.top_logprobs) == len(shown.text_offset) == 12
    for name, logprob, top in zip(
        shown.tokens, shown.token_logprobs, shown.top_logprobs, strict=True
    ):
        assert top[name] == logprob
        assert 2 <= len(top) <= 3


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def test_texts_follow_what_they_are_asked_to_follow(client, sdk):
    for asked in (
        {"response_format": NAMED},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    ):
        choice = chat(client, **{**LIKELY, "max_tokens": 100}, **asked).choices[0]
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert choice.finish_reason == "stop"
    same = sdk.generate("hello", sampling=SAMPLED, max_tokens=100, json_schema=SCHEMA)
    assert choice.message.content == same.text
    choices = ["yes (really)", "no.", "a|b"]
    for seed in range(4):
        body = {"structured_outputs": {"choice": choices}}
        answer = completion(client, seed=seed, max_tokens=30, extra_body=body)
        assert answer.choices[0].text in choices
    digits = {"structured_outputs": {"regex": "[0-9]{5}"}}
    assert re.fullmatch("[0-9]{5}", chat(client, extra_body=digits).choices[0].message.content)


def test_the_examples_of_the_page_run(url, capsys):
    page = PAGE.read_text().replace("http://127.0.0.1:8000", url).replace("smollm2-135m", "tiny")
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(compile(code, PAGE.name, "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out
    (command,) = re.findall(r"^curl .*?(?=^```$)", page, re.MULTILINE | re.DOTALL)
    _, address, _, header, _, body = shlex.split(command.replace("\\\n", " "))
    kind, _, value = header.partition(": ")
    assert httpx2.post(address, content=body, headers={kind: value}).status_code == 200


def test_a_completion_echoes_its_prompt_and_says_how_likely_it_was(client, sdk):
    asked = {"echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 3}
    choice = completion(client, "hello", **asked).choices[0]
    plain = completion(client, "hello", temperature=0, max_tokens=3, logprobs=2).choices[0]
    assert choice.text == "hello" + plain.text
    told, num_prompt = choice.logprobs, len(sdk.tokenize("hello", raw=True))
    assert told.token_logprobs[0] is told.top_logprobs[0] is None
    assert told.tokens[num_prompt:] == plain.logprobs.tokens
    assert told.token_logprobs[num_prompt:] == plain.logprobs.token_logprobs
    assert "".join(told.tokens[:num_prompt]).endswith("hello")
    result = sdk.generate("hello", raw=True, max_tokens=1, logprobs=2, prompt_logprobs=True)
    expected = [item.logprob for item in result.prompt.logprobs[1:]]
    assert told.token_logprobs[1:num_prompt] == expected
    ids = list(sdk.tokenize("hello", raw=True))
    assert completion(client, ids, **asked).choices[0].logprobs == told


def test_a_prompt_is_judged_without_an_answer(client):
    asked = {"echo": True, "logprobs": 1, "max_tokens": 0}
    answer = completion(client, "hello", **asked)
    assert answer.choices[0].text == "hello"
    assert answer.usage.completion_tokens == 0
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.prompt_tokens


def test_an_echo_is_a_stream_s_first_part(client):
    parts = list(completion(client, "hello", echo=True, stream=True, temperature=0))
    whole = completion(client, "hello", temperature=0).choices[0].text
    assert parts[0].choices[0].text == "hello"
    assert "".join(part.choices[0].text for part in parts) == "hello" + whole
