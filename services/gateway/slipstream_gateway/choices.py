"""Several answers to one prompt: run at once, and read as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from slipstream.client import AsyncChunkStream, AsyncClient, Chunk, FinishReason, PromptInfo, Result
from slipstream.core.inline import ended
from slipstream_gateway.body import MAX_CHOICES, CompletionRequest

T = TypeVar("T")
_Parts = asyncio.Queue[tuple[int, Chunk | Exception | None]]


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream whose first chunk has been read."""

    prompt: PromptInfo
    first: Chunk
    rest: AsyncChunkStream


async def opened(*streams: AsyncChunkStream) -> list[OpenStream]:
    """Read the first chunk of each; where one is refused, the others end."""
    try:
        firsts = await together([stream.__anext__() for stream in streams])
    except BaseException:
        await asyncio.gather(*(stream.aclose() for stream in streams))
        raise
    prompts = [cast("PromptInfo", first.prompt) for first in firsts]
    return list(map(OpenStream, prompts, firsts, streams))


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of work, of which so much as one prompt may have answers runs at once;
    what one raises ends the others."""
    places = asyncio.Semaphore(MAX_CHOICES)

    async def placed(item: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await item

    tasks = [asyncio.ensure_future(placed(item)) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await ended(*tasks)
        for item in work:
            item.close()  # what never began


async def _read(index: int, stream: OpenStream, queue: _Parts) -> None:
    last = None
    try:
        async with aclosing(stream.rest) as rest:
            await queue.put((index, stream.first))
            async for chunk in rest:
                await queue.put((index, chunk))
    except Exception as error:
        last = error
    await queue.put((index, last))


async def merged(streams: Sequence[OpenStream]) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Yield chunks as they come, each with the number of its stream. Raises what one raises.

    One chunk of each waits, and one more.
    """
    queue: _Parts = asyncio.Queue(1)
    tasks = [
        asyncio.create_task(_read(index, stream, queue)) for index, stream in enumerate(streams)
    ]
    num_open = len(tasks)
    try:
        while num_open:
            index, part = await queue.get()
            if isinstance(part, Exception):
                raise part
            if part is None:
                num_open -= 1
            else:
                yield index, part
    finally:
        for task in tasks:
            task.cancel()
        await ended(*tasks)


async def texts_of(client: AsyncClient, body: CompletionRequest) -> list[str]:
    """Return the prompts as texts where answers echo them, else none."""
    if not body.echo:
        return []
    return [
        prompt if isinstance(prompt, str) else await client.detokenize(prompt, model=body.model)
        for prompt in body.prompt
    ]


def without_output(result: Result) -> Result:
    """Return a result whose only token was not wanted."""
    stats = replace(result.stats, num_output_tokens=0)
    reason = FinishReason.LENGTH
    return replace(result, text="", token_ids=(), logprobs=(), stats=stats, finish_reason=reason)
