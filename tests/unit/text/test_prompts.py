"""What a caller says becomes the ids the chat template means: turns, and tools as it knows them."""

import json

import pytest

from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.request.prompt import PromptForm, checked_prompt
from slipstream.core.request.tools import Tool, ToolFormat
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.text.tool_prompt import TOOL_FORMATS, format_of
from support.models.tiny_checkpoint import byte_tokenizer, text_tokenizer

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
KNOWING = (
    "{% for t in tools or [] %}T{{ t.function | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}C{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}{% endfor %}"
)
OWN = "{{ own }}{{ a }}{{ b }}"
TOOL = Tool("f", "does f", '{"type": "object", "properties": {"x": {"type": "integer"}}}')
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TALK = [
    {"role": "user", "content": "please"},
    {"role": "assistant", "content": "", "tool_calls": (CALL,)},
    {"role": "tool", "content": "7", "tool_call_id": "c1"},
]


def tokenizer(template):
    parts = text_tokenizer(byte_tokenizer()).parts()
    return TextTokenizer.from_parts(parts.json, template, parts.special_tokens)


def test_a_template_that_knows_tools_gets_them_and_calls_with_values_for_arguments():
    shown, _, rest = tokenizer(KNOWING).render(TALK, [TOOL]).partition("<user>")
    about = {"name": "f", "description": "does f", "parameters": json.loads(TOOL.parameters)}
    assert json.loads(shown[1:]) == about
    assert rest == 'please<assistant>Cf{"x": 1}<tool>7#c1'


def test_a_template_that_knows_none_has_them_as_text():
    text = tokenizer(PLAIN).render(TALK, [TOOL])
    assert text.startswith("<system>You may call one or more functions")
    assert '"description": "does f"' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call></assistant>' in text
    assert text.endswith("<user><tool_response>\n7\n</tool_response></user>")
    assert tokenizer(PLAIN).render(TALK[:1]) == "<user>please</user>"
    messages = [{"role": "system", "content": "Be brief."}, *TALK[:1]]
    text = tokenizer(PLAIN).render(messages, [TOOL])
    assert text.startswith("<system>Be brief.\n\nYou may call one or more functions")
    assert text.count("<system>") == 1


def test_a_template_has_further_variables_and_keeps_its_own():
    text = tokenizer("{{ mood.kind }}{{ documents }}|" + PLAIN)
    own = {"mood": {"kind": "glad"}, "documents": 5, "unread": [1]}
    assert text.render(TALK[:1], (), own) == "glad5|<user>please</user>"
    for name in ("messages", "tools", "add_generation_prompt", *text.parts().special_tokens):
        with pytest.raises(InvalidRequest, match=f"chat_template_kwargs has {name},"):
            text.render(TALK[:1], (), {name: "x"})


@pytest.mark.parametrize("template", [OWN + PLAIN, OWN + KNOWING])
def test_no_tool_no_call_and_no_variable_can_write_a_control_token(template):
    text = tokenizer(template)
    name = next(iter(text.parts().special_tokens.values()))
    token = text.encode(name, add_special_tokens=False)[0]
    function = {"name": "f", "arguments": json.dumps({name: name}).replace("<", "\\u003c")}
    talk = [TALK[0], {**TALK[1], "tool_calls": ({**CALL, "function": function},)}, TALK[2]]
    tool = Tool("f", name, json.dumps({"type": "object", "properties": {name: {}}}))
    own = {"own": {name: name}, "a": name[:2], "b": name[2:]}
    form = PromptForm(tools=(tool,), chat_template_kwargs=json.dumps(own))
    assert token not in encode_prompt(text, talk, form)


@pytest.mark.parametrize(
    ("template", "chosen", "found"),
    [
        ("", "auto", None),
        (PLAIN, "auto", ToolFormat.HERMES),
        ("{{ tools }}<tool_call>", "auto", ToolFormat.HERMES),
        ("{{ tools }}[TOOL_CALLS]", "auto", ToolFormat.MISTRAL),
        ("{{ tools }}<|python_tag|>", "auto", ToolFormat.LLAMA3),
        (PLAIN, "mistral", ToolFormat.MISTRAL),
        (PLAIN, "none", None),
    ],
)
def test_the_format_goes_by_the_template_or_by_choice(template, chosen, found):
    assert chosen in TOOL_FORMATS
    assert format_of(template, chosen) is found


def test_tools_go_with_a_first_turn_of_messages_only():
    form, text = PromptForm(tools=(TOOL,)), tokenizer(PLAIN)
    with pytest.raises(InvalidRequest, match="only the first can have any"):
        encode_prompt(text, "hello", form, last_token=5)
    with pytest.raises(UnsupportedCombination, match="token ids show none"):
        encode_prompt(text, [1, 2], form)
    with pytest.raises(UnsupportedCombination, match="a raw prompt shows none"):
        PromptForm(raw=True, tools=(TOOL,))


READING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.name %}{{ m.name }}:{% endif %}"
    "{% if m.thinking %}({{ m.thinking }} {{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}C{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("tail", ["", "{# tools #}"], ids=["without tools", "with tools"])
@pytest.mark.parametrize("thoughts", ["reasoning_content", "reasoning", "thinking"])
def test_what_a_template_reads_of_a_message_reaches_it(tail, thoughts):
    tokenizer = text_tokenizer(byte_tokenizer(template=READING + tail))
    talk = [
        {"role": "user", "content": "Hi", "name": "ann", "cache_control": {"a": 1}},
        {"role": "assistant", "content": None, thoughts: "hm", "annotations": []},
        {"role": "developer", "content": ["a", {"type": "text", "text": "b"}], "name": None},
    ]
    ids = encode_prompt(tokenizer, talk)
    assert tokenizer.decode(ids) == "<user>ann:Hi<assistant>(hm hm)<system>a\nb"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "{}"),
        (" ", "{}"),
        ({"a": 1}, '{"a": 1}'),
        ('{"a":1}', '{"a": 1}'),
        ('{"a": ', r'"{\"a\": "'),
        ('{"a": "b\nc"}', r'{"a": "b\nc"}'),
        (5, '"5"'),
        ("null", '"null"'),
        ([1], '"[1]"'),
    ],
)
def test_arguments_are_an_object_or_else_the_text_that_they_are(given, shown):
    tokenizer = text_tokenizer(byte_tokenizer(template=READING + "{# tools #}"))
    call = {"function": {"name": "f", "arguments": given}}
    talk = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "x"}]
    assert tokenizer.decode(encode_prompt(tokenizer, talk)) == f"<assistant>C{shown}<user>x"


@pytest.mark.parametrize(("depth", "fits"), [(64, True), (65, False), (480, False), (10**5, False)])
def test_arguments_of_earlier_calls_are_nested_within_a_limit(depth, fits):
    tokenizer = text_tokenizer(byte_tokenizer(template="{{ tools }}{{ messages | tojson }}"))
    arguments = '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    prompt = [{"role": "assistant", "content": "", "tool_calls": calls}, user("x")]
    if fits:
        assert encode_prompt(tokenizer, prompt)
        return
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.tool_calls\[0\] must be nested at"):
        encode_prompt(tokenizer, prompt)


RAW = PromptForm(raw=True)
TRANSFORMERS = byte_tokenizer()
TOKENIZER = text_tokenizer(TRANSFORMERS)
END = TRANSFORMERS.eos_token_id


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def ids(text):
    return tuple(TRANSFORMERS.encode(text))


def test_text_is_one_user_message_and_a_raw_prompt_is_taken_as_it_is():
    assert encode_prompt(TOKENIZER, "hello") == encode_prompt(TOKENIZER, [user("hello")])
    assert encode_prompt(TOKENIZER, "hello", RAW) == ids("hello")
    assert encode_prompt(TOKENIZER, [5, 6, 7]) == (5, 6, 7)
    assert encode_prompt(TOKENIZER, "more", RAW, last_token=9) == ids("more")
    assert encode_prompt(TOKENIZER, [5], last_token=5) == (5,)


@pytest.mark.parametrize("ending", [(END,), ()], ids=["finished", "cut at the limit"])
def test_turns_appended_one_by_one_are_the_conversation_at_once(ending):
    held = encode_prompt(TOKENIZER, "one") + ids("two") + ending
    held += encode_prompt(TOKENIZER, "three", last_token=held[-1])
    assert held == encode_prompt(TOKENIZER, [user("one"), assistant("two"), user("three")])


@pytest.mark.parametrize("reply", ["Once", "Once ", " upon\n", ""])
def test_the_last_reply_goes_on_without_an_end_or_a_new_turn(reply):
    form = PromptForm(continue_final=True)
    expected = ids(f"<|user|>hello<|end|>\n<|bot|>{reply}")
    assert encode_prompt(TOKENIZER, [user("hello"), assistant(reply)], form) == expected


@pytest.mark.parametrize("prompt", ["hello", [5, 6], [user("hello")]])
def test_only_a_last_message_of_the_assistant_goes_on(prompt):
    with pytest.raises(InvalidRequest, match="continue_final goes with"):
        encode_prompt(TOKENIZER, prompt, PromptForm(continue_final=True))


def test_a_template_that_needs_objects_for_arguments_names_the_call_that_has_none():
    source = "{{ tools }}{% for k in messages[1].tool_calls[1].function.arguments %}{{ k.x.y }}"
    strict = text_tokenizer(byte_tokenizer(template=source + "{% endfor %}"))
    calls = [{"function": {"name": "f", "arguments": text}} for text in ("{}", '{"a":')]
    history = [user("a"), {"role": "assistant", "tool_calls": calls}, user("b")]
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls\[1\] are no JSON object"):
        encode_prompt(strict, history)


def test_a_template_that_hides_the_reply_can_not_be_continued():
    forgetful = text_tokenizer(byte_tokenizer(template="{{ messages[-1]['content'] }}"))
    with pytest.raises(InvalidRequest, match="can't continue"):
        encode_prompt(forgetful, "more", last_token=0)


@pytest.mark.parametrize(
    "prompt",
    [
        {"role": "user", "content": "a secret"},
        [{"text": "a secret"}],
        [{"role": "user", "content": [{"type": "a secret"}]}],
        [{"role": "user", "content": "a secret"}, "a secret"],
        [{"role": "user", "content": "a secret \ud800"}],
        b"a secret",
    ],
)
def test_what_is_refused_is_not_quoted(prompt):
    with pytest.raises(InvalidRequest) as refused:
        checked_prompt(prompt)
    assert "secret" not in str(refused.value)
