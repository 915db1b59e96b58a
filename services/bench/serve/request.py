"""Sends one request through the SDK and keeps what its caller sees. Knows no load."""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.bench.serve.sample import Failure, Mark, Sample
from slipstream.client import AsyncClient
from slipstream.core.errors import SlipstreamError
from slipstream.core.options import SpeculationOptions
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, RequestStats
from slipstream.core.timing import Clock
from slipstream.core.types import SamplingParams

GoesOn = Callable[[int], bool]
"""Told how many tokens have just come; whether to read on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as the SDK takes it, and the question it is named after."""

    question_id: int | str
    prompt: Prompt
    max_tokens: int
    sampling: SamplingParams
    speculation: SpeculationOptions


def always(num_tokens: int) -> bool:
    """Read every answer to its end."""
    del num_tokens
    return True


async def send(
    client: AsyncClient, ask: Ask, *, due_s: float, clock: Clock, goes_on: GoesOn = always
) -> Sample:
    """Read an answer until it ends, fails or is left. Errors of this package are results here."""
    read = _Reading(clock)
    sent_s = clock()
    failure = None
    try:
        await _read(client, ask, read, goes_on)
    except SlipstreamError as error:
        failure = Failure(type(error).__name__, str(error))
    return Sample(
        ask.question_id,
        due_s,
        sent_s,
        clock(),
        tuple(read.marks),
        tuple(read.token_ids),
        read.stats,
        failure,
    )


class _Reading:
    """What has come of one answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.marks: list[Mark] = []
        self.token_ids: list[int] = []
        self.stats: RequestStats | None = None

    def take(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self.marks.append(Mark(self._clock(), len(chunk.token_ids)))
            self.token_ids += chunk.token_ids
        self.stats = chunk.stats or self.stats


async def _read(client: AsyncClient, ask: Ask, into: _Reading, goes_on: GoesOn) -> None:
    stream = client.stream(
        ask.prompt,
        max_tokens=ask.max_tokens,
        sampling=ask.sampling,
        speculation=ask.speculation,
    )
    async with stream as chunks:
        async for chunk in chunks:
            into.take(chunk)
            if not goes_on(len(chunk.token_ids)):
                return
