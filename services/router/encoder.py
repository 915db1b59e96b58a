"""Prompts of a router to token ids, long ones aside from its event loop."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from slipstream.core.request.prompt import Prompt, are_ids
from slipstream.core.request.request import Ask
from slipstream.router.replicas.probes import DescribedTarget
from slipstream.text.prompts import encode_prompt

LONG_PROMPT = 4096
"""Characters from which on a prompt is encoded in a thread, as one with tools always is."""
NUM_THREADS = 2
"""Long prompts that are encoded at once; each may take the memory of its context's tokens."""
_MESSAGE_CHARS = 32
"""Of what a chat template puts around a message."""


class PromptEncoder:
    """A few threads that encode. `close` it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, "encode")

    async def encode(
        self, model: DescribedTarget, prompt: Prompt, ask: Ask, *, last_token: int | None = None
    ) -> tuple[int, ...]:
        """Token ids of a first turn, or of one behind `last_token`.

        Raises `PromptTooLong` for a text that is longer than the model's context.
        """
        encode = partial(
            encode_prompt,
            model.tokenizer,
            prompt,
            ask.form,
            last_token=last_token,
            max_tokens=model.facts.context_length,
        )
        if not ask.tools and _num_chars(prompt) < LONG_PROMPT:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode)

    def close(self) -> None:
        """Encode nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _num_chars(prompt: Any) -> int:
    """Return the approximate number of characters to encode."""
    if isinstance(prompt, str) or are_ids(prompt):
        return len(prompt)
    messages: tuple[Mapping[str, Any], ...] = prompt
    texts = (text for message in messages for text in message.values() if isinstance(text, str))
    return _MESSAGE_CHARS * len(messages) + sum(map(len, texts))
