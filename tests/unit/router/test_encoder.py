"""Prompts are encoded in processes of their own: a template that takes too much ends its own one.

Templates are programs of strangers: nothing of them runs on the event loop.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.core.errors import InvalidRequest, PromptTooLong
from slipstream.core.request.prompt import PLAIN_FORM, PromptForm
from slipstream.core.request.tools import Tool
from slipstream.text.prompts import encode_prompt
from slipstream.text.worker import load_request
from slipstream_router.encoder import TextWorker, open_text
from support.models.tiny_checkpoint import TEMPLATE, byte_tokenizer, text_tokenizer
from support.services.background import until
from support.services.hostile_templates import HOSTILE, LOOP
from support.services.processes import kill, text_workers

TOKENIZER = text_tokenizer(byte_tokenizer(template="{{ tools }}{{ mood }}" + TEMPLATE))
CONTEXT = 100_000
USER = {"role": "user", "content": "hello <|end|> é漢"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
ASSISTANT = {"role": "assistant", "content": "", "tool_calls": (CALL,), "reasoning": "hm"}
PROMPTS = {
    "text": ("hello", PLAIN_FORM, None),
    "messages": ([USER, ASSISTANT, {"role": "tool", "content": "x", "tool_call_id": "1"}],) * 1
    + (PromptForm(tools=(Tool("f", "does", '{"type":"object"}'),)), None),
    "a later turn": ([USER], PLAIN_FORM, 0),
    "raw": ("<|end|>", PromptForm(raw=True, allow_special_tokens=True), None),
    "a reply that goes on": (
        [USER, {"role": "assistant", "content": "so"}],
        PromptForm(continue_final=True),
        None,
    ),
    "variables": ([USER], PromptForm(chat_template_kwargs='{"mood": ["<|end|>", 5]}'), None),
    "long": ("a b " * 10_000, PLAIN_FORM, None),
    "ids": ([5, 6], PLAIN_FORM, None),
}


def parts(template):
    return TOKENIZER.parts()._replace(chat_template=template)


@asynccontextmanager
async def opened(template=None):
    text, vocab_hash = await open_text(
        *(TOKENIZER.parts() if template is None else parts(template))
    )
    assert vocab_hash == TOKENIZER.vocab_hash
    try:
        yield text
    finally:
        await text.aclose()


async def test_prompts_have_the_tokens_that_they_have_in_one_process():
    async with opened() as text:
        for name, (prompt, form, last) in PROMPTS.items():
            ids = await text.encode(prompt, form, max_tokens=CONTEXT, last_token=last)
            assert (name, ids) == (name, encode_prompt(TOKENIZER, prompt, form, last_token=last))


async def test_refusals_are_those_of_one_process():
    async with opened() as text:
        with pytest.raises(InvalidRequest, match="chat_template_kwargs must be a JSON object"):
            await text.encode([USER], PromptForm(chat_template_kwargs="[]"), max_tokens=CONTEXT)
        with pytest.raises(PromptTooLong, match="exceeds 640, 64 for each"):
            await text.encode("a" * 1000, PLAIN_FORM, max_tokens=10)
        with pytest.raises(InvalidRequest, match="token id 259, not 0 to 258"):
            await text.encode([259], PLAIN_FORM, max_tokens=10)


async def test_a_short_prompt_does_not_wait_for_a_long_one():
    async with opened(HOSTILE) as text:
        long = asyncio.create_task(
            text.encode(
                [USER, *[ASSISTANT] * 99, {"role": "user", "content": "loop"}],
                PLAIN_FORM,
                max_tokens=CONTEXT,
            )
        )
        await asyncio.sleep(0)
        await text.encode("hello", PLAIN_FORM, max_tokens=CONTEXT)
        assert not long.done()
        long.cancel()
        await asyncio.wait({long})


@pytest.fixture
def workers():
    """The workers that a test has started: others of this process may belong to shared routers."""
    before = text_workers()
    return lambda: text_workers() - before


async def test_a_template_that_does_not_end_in_its_trial_is_refused(workers):
    worker = TextWorker(load_request(*parts(LOOP), cpu_s=0.5))
    with pytest.raises(InvalidRequest, match=r"the chat template .* takes more than 0\.5 s of CPU"):
        await worker.load()
    await worker.aclose()
    assert not workers()


async def test_a_worker_that_is_killed_is_replaced_and_a_prompt_in_it_repeated(workers):
    async with opened() as text:
        expected = await text.encode("hello", PLAIN_FORM, max_tokens=CONTEXT)
        for _ in range(2):
            for number in workers():
                kill(number)
            assert await text.encode("hello", PLAIN_FORM, max_tokens=CONTEXT) == expected
    assert not workers()


async def test_a_caller_that_leaves_takes_no_answer_of_another():
    async with opened() as text:
        leaving = asyncio.create_task(text.encode("hello", PLAIN_FORM, max_tokens=CONTEXT))
        await asyncio.sleep(0)
        leaving.cancel()
        ids = await text.encode("other", PLAIN_FORM, max_tokens=CONTEXT)
        assert ids == encode_prompt(TOKENIZER, "other")


async def test_the_workers_of_a_model_that_is_gone_end(workers):
    text, _ = await open_text(*TOKENIZER.parts())
    assert workers()
    del text
    await asyncio.sleep(0)  # until the task is there that waits for them
    await until(lambda: not workers() and len(asyncio.all_tasks()) == 1)
