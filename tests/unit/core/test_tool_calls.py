"""Tool calls in texts: every format, cut anywhere, and nothing of a text is lost."""

import json
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slipstream.core.request import tool_calls
from slipstream.core.request.tool_calls import CallPiece, ToolCallParser, call_id
from slipstream.core.request.tools import ToolFormat

NAMES = ("f", "g")
HERMES, LLAMA3, MISTRAL = ToolFormat
FORMATS = (*ToolFormat, None)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=4,
)
CALLS = some.lists(
    some.tuples(some.sampled_from(NAMES), some.dictionaries(some.text(), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


def read(tool_format, parts):
    parser = ToolCallParser(tool_format, NAMES)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.end()
    calls = {}
    for piece in pieces:
        if isinstance(piece, CallPiece):
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + (piece.name or ""), arguments + piece.arguments)
    assert list(calls) == list(range(len(calls)))
    return "".join(piece for piece in pieces if isinstance(piece, str)), list(calls.values())


def written(tool_format, calls):
    """Calls as models of the format write them."""
    key = "parameters" if tool_format is LLAMA3 else "arguments"
    texts = [json.dumps({"name": name, key: arguments}) for name, arguments in calls]
    match tool_format:
        case ToolFormat.HERMES:
            return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
        case ToolFormat.LLAMA3:
            return "; ".join(texts)
        case ToolFormat.MISTRAL:
            if len(calls) == 2:  # as newer models do
                return "".join(f"[TOOL_CALLS]{f}[ARGS]{json.dumps(it)}" for f, it in calls)
            return f"[TOOL_CALLS] [{', '.join(texts)}]"
    return texts[0]


PARTS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<", "[", "]", "{", "}"),
    *('"', "\\", " ", "\n", "abc", '"name"', ":", ",", '"f"', '"arguments"', '{"a\\"b": 1}'),
    *("f", "[ARGS]", "f{}"),
    *('{"name": "f", "arguments": {"x": 1}}', '{"name": "h", "arguments": {}}'),
    *('{"arguments": {}, "name": "g"}', '{"x": 1, "name": "f", "arguments": {}}'),
)
ENDLESS = {
    "spaces": (" ", " "),
    "spaces in a call": ("<tool_call>{", " "),
    "a name": ('<tool_call>{"name": "', "f"),
    "a first key": ('<tool_call>{"', "f"),
    "a call in another order": ('<tool_call>{"arguments": {"x": "', "y"),
    "backslashes": ('<tool_call>{"arguments": {"x": "', "\\"),
    "brackets": ('<tool_call>{"arguments": {"x": ', "["),
    "arguments": ('<tool_call>{"name": "f", "arguments": {"x": "', "y"),
}
"""Texts that begin so and go on so."""


def num_characters(text):
    """Count the characters of the strings that each line of the parser has, its own included."""
    count, parser, before = 0, ToolCallParser(HERMES, NAMES), sys.gettrace()

    def on_line(frame, event, _):
        nonlocal count
        values = list(frame.f_locals.values())
        if isinstance(owner := frame.f_locals.get("self"), ToolCallParser):
            values += vars(owner).values()
        count += sum(len(value) for value in values if isinstance(value, str))
        return on_line

    sys.settrace(lambda at, *_: on_line if at.f_code.co_filename == tool_calls.__file__ else None)
    try:
        for part in text:
            parser.push(part)
        parser.end()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", ENDLESS)
def test_the_work_for_a_text_that_does_not_end_is_linear_in_its_length(name):
    begin, more = ENDLESS[name]
    few, many = [num_characters(begin + more * (it // len(more))) for it in (1_000, 8_000)]
    assert many < 1.2 * 8 * few


@given(some.sampled_from(FORMATS), some.lists(some.sampled_from(PARTS), max_size=9), some.data())
def test_a_text_means_the_same_however_it_is_cut(tool_format, parts, data):
    text = "".join(parts)
    at = data.draw(some.integers(0, len(text)))
    whole = read(tool_format, [text])
    assert read(tool_format, list(text)) == read(tool_format, [text[:at], text[at:]]) == whole


@settings(max_examples=40)
@given(some.sampled_from(FORMATS), CALLS, some.integers(1, 9))
def test_calls_are_read_as_they_were_written_however_the_text_is_cut(tool_format, calls, size):
    calls = calls[:1] if tool_format is None else calls
    text = written(tool_format, calls)
    told, found = read(tool_format, [text[at : at + size] for at in range(0, len(text), size)])
    assert told == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@given(some.sampled_from(FORMATS), some.text())
def test_a_text_without_a_tool_s_name_is_returned_unchanged(tool_format, text):
    text = re.sub("name|[fg]{", "x", text)
    assert read(tool_format, list(text)) == (text, [])


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, '<tool_call>{"name": "h", "arguments": {}}</tool_call>'),
        (HERMES, "a <tool_call> b </tool_call> c"),
        (HERMES, '<tool_call>{"name": "f", "arguments": 3}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f'),
        (HERMES, '{"name": "f", "arguments": {}}'),
        (LLAMA3, '{"colour": "blue"} is JSON'),
        (LLAMA3, 'So: {"name": "f", "parameters": {}}'),
        (MISTRAL, "[1, 2, 3]"),
        (None, '{"name": "h", "arguments": {}}'),
        (HERMES, " \n x \n "),
    ],
)
def test_what_is_no_call_of_a_known_tool_stays_text(tool_format, text):
    for parts in ([text], list(text)):
        assert read(tool_format, parts) == (text, [])


def test_text_around_calls_is_the_answer_s():
    text = 'Let me see.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\nDone < 3.'
    for parts in ([text], list(text)):
        assert read(HERMES, parts) == ("Let me see.Done < 3.", [("f", "{}")])


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"x": 1}, "name": "f"}',
        '{"name": "f", "arguments": "{\\"x\\": 1}"}',
        '{"id": "1", "type": "function", "name": "f", "arguments": {"x": 1}}',
    ],
)
def test_a_call_in_another_order_is_read_when_it_is_whole(call):
    for parts in ([call], list(call)):
        assert read(None, parts) == ("", [("f", '{"x": 1}')])


def test_a_call_without_arguments_has_none_and_line_breaks_in_texts_are_written_as_json_has_them():
    for call in ('{"name": "f"}', '{"id": "1", "name": "f", "arguments": null}'):
        assert read(HERMES, [*f"<tool_call>{call}</tool_call>"]) == ("", [("f", "{}")])
    text = '{"name": "f", "arguments": {\n "x": "a\n\\"\tb\\\\"}}'
    for size in (1, 2, 3, 5, len(text)):
        told, ((_, arguments),) = read(
            None, [text[at : at + size] for at in range(0, len(text), size)]
        )
        assert (told, json.loads(arguments)) == ("", {"x": 'a\n"\tb\\'})
    assert read(HERMES, ['<tool_call>{"name": "f", "x": 1}'])[1] == []


@pytest.mark.parametrize("before", ["", "Now: [TOOL_CALLS]"])
def test_a_call_of_mistral_may_be_a_name_and_arguments_without_the_tokens_around(before):
    for text in (before + 'f{"x": "}"} g{}', before + 'f[ARGS]{"x": "}"}[TOOL_CALLS]g[ARGS]{}'):
        assert read(MISTRAL, list(text)) == (before[:4], [("f", '{"x": "}"}'), ("g", "{}")])
    assert read(MISTRAL, list(before + "f or {}"))[1] == []


def test_a_call_that_is_cut_off_has_the_arguments_so_far():
    assert read(None, ['{"name": "f", "arguments": {"x": "ye']) == ("", [("f", '{"x": "ye')])


def test_arguments_are_sent_while_they_come():
    parser = ToolCallParser(None, NAMES)
    assert parser.push('{"name":"f","arguments":{"x') == [
        CallPiece(0, "f", ""),
        CallPiece(0, None, '{"x'),
    ]
    assert parser.push('":1}}') == [CallPiece(0, None, '":1}')]
    assert parser.end() == []


def test_ids_of_calls_are_nine_letters_and_digits_that_depend_on_the_request_alone():
    ids = {call_id(request, index) for request in ("a", "b") for index in range(50)}
    assert len(ids) == 100
    assert all(len(name) == 9 and name.isascii() and name.isalnum() for name in ids)
    assert call_id("a", 3) in ids
