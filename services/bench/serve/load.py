"""Requests of a load: how a question becomes one, what its caller sees, and what comes first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice

from slipstream.bench.harness import WARMUP_TOKENS, Advance, require_room
from slipstream.bench.questions import Question
from slipstream.bench.serve.configurations import Configuration
from slipstream.bench.serve.loops import Pace, Send, closed_loop
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.sample import Failure, Mark, Sample
from slipstream.client import AsyncClient
from slipstream.core.errors import PromptTooLong, SlipstreamError
from slipstream.core.options import SpeculationOptions
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, RequestStats
from slipstream.core.timing import Clock
from slipstream.core.types import SamplingParams

GoesOn = Callable[[int], bool]
"""Receives the number of tokens that have just come; returns whether to read on."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request as the SDK takes it, and the question that it belongs to."""

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
    client: AsyncClient, request: Request, *, due_s: float, clock: Clock, goes_on: GoesOn = always
) -> Sample:
    """Read an answer until it ends, fails or is left. Errors of this package are results here."""
    read = _Reading(clock)
    sent_s = clock()
    failure = None
    try:
        await _read(client, request, read, goes_on)
    except SlipstreamError as error:
        failure = Failure(type(error).__name__, str(error))
    return Sample(
        request.question_id,
        due_s,
        sent_s,
        clock(),
        tuple(read.marks),
        tuple(read.token_ids),
        read.stats,
        failure,
    )


class _Reading:
    """Answer so far."""

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


async def _read(client: AsyncClient, request: Request, into: _Reading, goes_on: GoesOn) -> None:
    stream = client.stream(
        request.prompt,
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        speculation=request.speculation,
    )
    async with stream as chunks:
        async for chunk in chunks:
            into.take(chunk)
            if not goes_on(len(chunk.token_ids)):
                return


@dataclass(frozen=True, slots=True)
class Load:
    """Plan, the client that it goes through, and how time passes."""

    plan: ServePlan
    client: AsyncClient
    advance: Advance
    pace: Pace = field(default_factory=Pace)

    def request(
        self, question: Question, config: Configuration, *, most: int | None = None
    ) -> Request:
        """Return a question as it is sent, with at most `most` tokens."""
        limit = self.plan.max_new_tokens
        return Request(
            question.question_id,
            question.turns[0],
            limit if most is None else min(most, limit),
            self.plan.sampling,
            config.options,
        )

    def sender(self, config: Configuration, *, most: int | None = None) -> Send:
        """Return what sends questions for a configuration."""

        async def ask(question: Question, due_s: float) -> Sample:
            return await self.send(self.request(question, config, most=most), due_s)

        return ask

    async def send(self, request: Request, due_s: float, *, goes_on: GoesOn = always) -> Sample:
        """Send a request now, for a user who came at `due_s`."""
        clock = self.pace.clock
        return await send(self.client, request, due_s=due_s, clock=clock, goes_on=goes_on)


async def prepare(load: Load) -> None:
    """Have every configuration answer alone, then at every point.

    Alone, any failure is raised; under load failures are results.
    """
    plan = load.plan
    await _check_lengths(load)
    for config in plan.configs:
        request = load.request(plan.questions[0], config, most=WARMUP_TOKENS)
        await load.client.generate(
            request.prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            speculation=request.speculation,
        )
    for point in plan.points if plan.warmup else ():
        for config in plan.configs:
            await _warm_up(load, point, config)
            load.advance(config.name)


async def _warm_up(load: Load, point: Point, config: Configuration) -> None:
    """Take short answers that are not measured; failures come again where they count."""
    width = point.concurrency or 1
    asked = islice(cycle(load.plan.questions), width * load.plan.warmup)
    await closed_loop(width, asked, load.sender(config, most=WARMUP_TOKENS), pace=load.pace)


async def _check_lengths(load: Load) -> None:
    plan, client = load.plan, load.client
    limit = (await client.model_info()).limits.context_length
    for question in plan.questions:
        length = len(await client.tokenize(question.turns[0]))
        require_room(question.question_id, length, plan.max_new_tokens, limit)
    if plan.long_prompt is not None and plan.long_prompt.num_tokens >= limit:
        raise PromptTooLong(
            f"intruder_tokens is {plan.long_prompt.num_tokens}, but the context holds {limit} with"
            " the token that follows"
        )
