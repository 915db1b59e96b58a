"""Chat templates say what they say in transformers, and can do nothing else."""

from datetime import datetime
from pathlib import Path

import pytest
import yaml

from slipstream.core.errors import InvalidRequest
from slipstream.text.template import MAX_RENDERED_CHARS, MAX_TEMPLATE_BYTES, ChatTemplate
from slipstream.text.tokenizer import TextTokenizer
from support.models.tiny_checkpoint import TEMPLATE, byte_tokenizer

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind", it\'s 漢字.'},
    {"role": "user", "content": "  one\n\n{{ two }} {% three %}\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nfour"},
    {"role": "user", "content": "five"},
]
GIVEN = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text(encoding="utf-8"))
SAID = {"the tests' own": TEMPLATE, **GIVEN["said"]}
REFUSED, WALKED, AS_TEXT = GIVEN["refused"], GIVEN["walked"], GIVEN["as_text"]


def noon():
    return datetime(2024, 2, 29, 12, 0, 1)


def render(source, messages=MESSAGES, special_tokens=None):
    return ChatTemplate(source, special_tokens or {}, noon).render(messages)


@pytest.mark.parametrize("source", SAID.values(), ids=SAID)
def test_a_template_says_what_it_says_in_transformers(source):
    hf = byte_tokenizer(template=source)
    expected = hf.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert render(source, special_tokens=hf.special_tokens_map) == expected


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_what_fails_in_transformers_is_a_refusal_here(source):
    hf = byte_tokenizer(template=source)
    with pytest.raises(Exception):  # noqa: B017 - whatever it raises
        hf.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    with pytest.raises(InvalidRequest, match="the chat template refuses these messages"):
        render(source)


def test_a_refusal_says_why_in_one_line():
    with pytest.raises(InvalidRequest, match=r"these messages \(Roles must alternate\)$"):
        render("{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('long ' * 1000 ~ '\n' ~ 'more') }}")
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_the_time_is_that_of_the_given_clock():
    assert render("{{ strftime_now('%d %b %Y %H:%M:%S') }}") == "29 Feb 2024 12:00:01"


def test_the_callers_messages_are_left_alone():
    messages = [dict(message) for message in MESSAGES]
    render("{% for message in messages %}{% set message = {} %}{% endfor %}", messages)
    assert messages == MESSAGES


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n{% for m in messages %}", "broken in line 2"),
        ("{% secret %}", "broken in line 1 .*secret"),
        ("{% generation %}", "broken in line 1"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is broken"),
        ("{% if 1 %}" * 200 + "{% endif %}" * 200, "is broken"),
        ("", "no chat template"),
    ],
)
def test_a_template_with_mistakes_leaves_raw_text(source, reason):
    json = byte_tokenizer().backend_tokenizer.to_str().encode()
    tokenizer = TextTokenizer.from_parts(json, source, {})
    assert tokenizer.decode(tokenizer.encode("hello", add_special_tokens=False)) == "hello"
    with pytest.raises(InvalidRequest, match=reason):
        tokenizer.render(MESSAGES)


@pytest.mark.parametrize(
    ("size", "special_tokens"),
    [(MAX_TEMPLATE_BYTES, {}), (MAX_TEMPLATE_BYTES - 12, {"bos_token": "<s>"})],
)
def test_a_template_has_a_largest_size(size, special_tokens):
    assert len(render("x" * size, special_tokens=special_tokens)) == size
    with pytest.raises(InvalidRequest, match=f"have {MAX_TEMPLATE_BYTES + 1} bytes"):
        ChatTemplate("x" * (size + 1), special_tokens, noon)


def test_what_it_makes_has_a_largest_size():
    line = "{% for _ in range(N) %}{{ 'x' * 1024 }}{% endfor %}"
    whole = MAX_RENDERED_CHARS // 1024
    assert len(render(line.replace("N", str(whole)))) == MAX_RENDERED_CHARS
    with pytest.raises(InvalidRequest, match="more than 16777216 characters"):
        render(line.replace("N", str(whole + 1)))


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "a b", ""])
def test_special_tokens_do_not_take_the_names_of_others(name):
    with pytest.raises(InvalidRequest, match="no special token"):
        ChatTemplate(TEMPLATE, {name: "<s>"}, noon)


@pytest.mark.parametrize("form", [*WALKED, *AS_TEXT])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_the_text_of_every_role_is_shown_as_a_text_or_in_parts(form, role):
    """Parts are for the roles whose content the template walks over, and for no others."""
    own, other = (WALKED | AS_TEXT)[form], AS_TEXT["text"]
    source = (
        "{% for m in messages %}<{{ m.role }}>"
        f"{{% if m.role == '{role}' %}}{own}{{% else %}}{other}{{% endif %}}"
        "{% endfor %}"
    )
    template = ChatTemplate(source, {}, datetime.now)
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "tool", "content": "three", "tool_call_id": "0"},
        {"role": "user", "content": "four"},
    ]
    found = template.render(messages).replace("!", "").lower()
    assert found == "<system>be kind<user>one<assistant>two<tool>three<user>four"


def test_a_role_that_a_template_refuses_is_refused_as_before():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = ChatTemplate(source + "{{ messages[0].content }}", {}, datetime.now)
    assert template.render([{"role": "user", "content": "a"}]) == "a"
    with pytest.raises(InvalidRequest, match="no system"):
        template.render([{"role": "system", "content": "a"}])
