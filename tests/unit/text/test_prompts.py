"""What a caller says becomes the ids the chat template means, turn by turn or at once."""

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.prompt import PromptForm, checked_prompt
from slipstream.models.tokenizer import text_tokenizer
from slipstream.text.prompts import encode_prompt
from support.models.tiny_checkpoint import byte_tokenizer

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


def test_text_is_one_user_message():
    expected = ids("<|user|>hello<|end|>\n<|bot|>")
    assert encode_prompt(TOKENIZER, "hello") == expected
    assert encode_prompt(TOKENIZER, [user("hello")]) == expected


def test_a_raw_prompt_is_taken_as_it_is():
    assert encode_prompt(TOKENIZER, "hello", RAW) == ids("hello")
    assert encode_prompt(TOKENIZER, [5, 6, 7]) == (5, 6, 7)


@pytest.mark.parametrize("ending", [(END,), ()], ids=["finished", "cut at the limit"])
def test_turns_appended_one_by_one_are_the_conversation_at_once(ending):
    held = encode_prompt(TOKENIZER, "one") + ids("two") + ending
    held += encode_prompt(TOKENIZER, "three", last_token=held[-1])
    whole = [user("one"), assistant("two"), user("three")]
    assert held == encode_prompt(TOKENIZER, whole)


def test_a_raw_turn_is_appended_as_it_is():
    assert encode_prompt(TOKENIZER, "more", RAW, last_token=9) == ids("more")
    assert encode_prompt(TOKENIZER, [5], last_token=5) == (5,)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("", "the prompt is empty"),
        ("  \n", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([-1], "token id -1"),
        ([259], "token id 259, not 0 to 258"),
        ([True], "text, token ids or messages"),
        ([1, "a"], "text, token ids or messages"),
        ([{"content": "a"}], r"messages\[0\].role must be a text"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a text"),
        ([user("a"), assistant("b")], "nothing to answer"),
    ],
)
def test_an_ill_formed_prompt_is_refused(prompt, reason):
    with pytest.raises(InvalidRequest, match=reason):
        encode_prompt(TOKENIZER, prompt)


def test_raw_messages_are_refused():
    with pytest.raises(InvalidRequest, match="not messages"):
        encode_prompt(TOKENIZER, [user("a")], RAW)


def test_a_model_without_template_takes_raw_prompts_only():
    plain = text_tokenizer(byte_tokenizer(template=None))
    with pytest.raises(InvalidRequest, match="no chat template"):
        encode_prompt(plain, "hello")
    assert encode_prompt(plain, "hello", RAW) == ids("hello")


def test_what_the_template_refuses_is_refused():
    strict = text_tokenizer(
        byte_tokenizer(template="{{ raise_exception('roles must alternate') }}")
    )
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        encode_prompt(strict, "hello")


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
