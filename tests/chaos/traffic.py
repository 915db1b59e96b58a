"""Streams that never stop coming, and what each of them must say."""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from slipstream.client import (
    AsyncChunkStream,
    AsyncClient,
    Chunk,
    Client,
    Mode,
    RequestOptions,
    Result,
    SamplingParams,
    SpeculationOptions,
)
from slipstream.core.errors import SlipstreamError
from slipstream.rpc.security import ClientTls

FORCED = SpeculationOptions(mode=Mode.FORCED)
NGRAM = SpeculationOptions(mode=Mode.FORCED, drafter="ngram")
TIMEOUT_S = 120.0
_ENDLESS = ((0, -100.0), (2, -100.0))
"""The ends of text of both models, which would cut streams short."""
_LONG = 400
_DRAWN = 120
_TURN = 60
_STREAM_LIMIT_S = 150.0
_MANY = 20
"""Failed streams after which there is no sense in going on."""
_PAUSE_S = 0.5
"""Before the next errand after one that failed."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A request, or the turns of a session."""

    name: str
    prompts: tuple[str, ...]
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(logit_bias=_ENDLESS))
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    max_tokens: int = _LONG
    more: RequestOptions = field(default_factory=RequestOptions)
    """Further options, such as a schema."""
    pause_s: float = 0.0
    """Before each next chunk, as of a caller who reads slowly."""
    leaves_after: int | None = None
    """Tokens after which the caller leaves."""

    def options(self, *, plain: bool = False) -> RequestOptions:
        """What to send beside a prompt; without speculation, for what it must come to."""
        options = RequestOptions(sampling=self.sampling, max_tokens=self.max_tokens, **self.more)
        if not plain:
            options["speculation"] = self.speculation
        return options


def sampled(temperature: float, seed: int, **law: float) -> SamplingParams:
    """Drawn text that does not end early."""
    return SamplingParams(temperature, seed=seed, logit_bias=_ENDLESS, **law)


ERRANDS = (
    Errand("greedy", ("the quick brown fox",), speculation=FORCED),
    Errand("sampled", ("a slow red hen",), sampled(0.8, 7), FORCED, _DRAWN),
    Errand("session", ("hello", "go on", "and then"), sampled(0.7, 3, top_p=0.9), FORCED, _TURN),
    Errand("copied", ("one two three one two three",), speculation=NGRAM),
    Errand("auto", ("what is a comet",), sampled(1.0, 11), max_tokens=_DRAWN),
    Errand(
        "penalised", ("the sea, the sea",), sampled(0.9, 5, repetition_penalty=1.2), FORCED, _DRAWN
    ),
    Errand("talk", ("is anybody there", "who"), speculation=FORCED, max_tokens=2 * _TURN),
)
SHORT = ERRANDS[:4]
"""One of each kind."""

Tokens = tuple[int, ...]
Answers = dict[str, tuple[Tokens, ...]]


def plain_answers(model: str, errands: Sequence[Errand]) -> Answers:
    """What plain decoding in one process says."""
    results = plain_results(model, errands)
    return {name: tuple(each.token_ids for each in results[name]) for name in results}


def plain_results(model: str, errands: Sequence[Errand]) -> dict[str, list[Result]]:
    with Client.embedded(model, "none", dtype="float32") as client:
        return {errand.name: _plain(client, errand) for errand in errands}


def _plain(client: Client, errand: Errand) -> list[Result]:
    options = errand.options(plain=True)
    if len(errand.prompts) == 1:
        return [client.generate(errand.prompts[0], **options)]
    with client.session() as session:
        return [session.generate(prompt, **options) for prompt in errand.prompts]


@dataclass(slots=True)
class Stream:
    """One request as its reader saw it. Times are of the monotonic clock."""

    errand: Errand
    turn: int
    begun: float
    request_id: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When tokens came."""
    ended: float | None = None
    error: str = ""
    num_losses: int = 0
    """Targets that it lost."""
    num_resumed: int = 0
    """Tokens that it had when another router took it over."""

    def was_running(self, at: float) -> bool:
        """Whether it had begun to speak and had not ended."""
        if not self.times or self.times[0] > at:
            return False
        return self.ended is None or self.ended > at

    def next_after(self, at: float) -> float | None:
        """Seconds from then to its next token, if there was one."""
        return next((t - at for t in self.times if t > at), None)

    def silence(self, at: float) -> float:
        """The longest time without a token from then on."""
        times = [at, *(t for t in self.times if t > at)]
        return max((after - first for first, after in itertools.pairwise(times)), default=0.0)


class Traffic:
    """Several streams at a time, one errand after another, as long as it is `flowing`."""

    def __init__(self, answers: Answers, errands: Sequence[Errand]) -> None:
        self._answers = answers
        self._errands = itertools.cycle(errands)
        self._is_closing = False
        self._moved = asyncio.Condition()
        self.num_tokens = 0
        self.streams: list[Stream] = []
        self.faults: list[str] = []
        """Streams that failed or said something else, in words."""

    def running(self, at: float) -> list[Stream]:
        return [stream for stream in self.streams if stream.was_running(at)]

    async def after(self, num_tokens: int) -> None:
        goal = self.num_tokens + num_tokens
        await self.until(lambda: self.num_tokens >= goal)

    async def ended(self, streams: Sequence[Stream]) -> None:
        await self.until(lambda: all(stream.ended is not None for stream in streams))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for tokens, or ends of streams, until something holds."""
        async with asyncio.timeout(_STREAM_LIMIT_S), self._moved:
            await self._moved.wait_for(lambda: holds() or len(self.faults) > _MANY)
        assert len(self.faults) <= _MANY, "\n".join(self.faults)

    def close(self) -> None:
        """Begin nothing more; what runs goes on to its end."""
        self._is_closing = True

    @asynccontextmanager
    async def flowing(
        self, address: str, num_streams: int, tls: ClientTls | None = None
    ) -> AsyncIterator[None]:
        """Traffic for as long as needed; at the end what runs is read to its end."""
        async with AsyncClient(address, tls=tls, timeout_s=TIMEOUT_S) as client:
            flows = [asyncio.ensure_future(self._flow(client)) for _ in range(num_streams)]
            try:
                yield
                self.close()
                await asyncio.gather(*flows)
            finally:
                for flow in flows:
                    flow.cancel()
                await asyncio.gather(*flows, return_exceptions=True)

    async def _flow(self, client: AsyncClient) -> None:
        while not self._is_closing:
            if not await self._run(client, next(self._errands)):
                await asyncio.sleep(_PAUSE_S)

    async def _run(self, client: AsyncClient, errand: Errand) -> bool:
        if len(errand.prompts) == 1:
            return await self._read(errand, 0, client.stream)
        session = client.session()
        is_well = True
        for turn in range(len(errand.prompts)):
            is_well = is_well and await self._read(errand, turn, session.stream)
        try:
            await session.aclose()
        except SlipstreamError as error:
            self.faults.append(f"{errand.name}: its session can't be closed: {error!r}")
        return is_well

    async def _read(self, errand: Errand, turn: int, start: Callable) -> bool:
        """Read a stream to its end; whether it had one as it should."""
        stream = Stream(errand, turn, time.monotonic())
        self.streams.append(stream)
        chunks = start(errand.prompts[turn], **errand.options())
        stream.request_id = chunks.request_id
        try:
            await asyncio.wait_for(self._take_all(stream, chunks), _STREAM_LIMIT_S)
        except Exception as error:  # the report says which, and the other streams go on
            stream.error = f"{type(error).__name__}: {error}"
        stream.ended = time.monotonic()
        fault = self._fault(stream)
        self.faults += [fault] if fault else []
        async with self._moved:
            self._moved.notify_all()
        return not fault

    async def _take_all(self, stream: Stream, chunks: AsyncChunkStream) -> None:
        async with chunks:
            async for chunk in chunks:
                await self._take(stream, chunk)
                if len(stream.tokens) >= (stream.errand.leaves_after or math.inf):
                    return
                await asyncio.sleep(stream.errand.pause_s)

    async def _take(self, stream: Stream, chunk: Chunk) -> None:
        if chunk.token_ids:
            stream.times.append(time.monotonic())
            stream.tokens += chunk.token_ids
            self.num_tokens += len(chunk.token_ids)
        if chunk.stats is not None:
            continuity = chunk.stats.continuity
            stream.num_losses = continuity.num_target_losses
            stream.num_resumed = continuity.num_resumed_tokens
        async with self._moved:
            self._moved.notify_all()

    def _fault(self, stream: Stream) -> str:
        named = f"{stream.errand.name}[{stream.turn}] {stream.request_id}"
        said, right = tuple(stream.tokens), self._answers[stream.errand.name][stream.turn]
        right = right if stream.errand.leaves_after is None else right[: len(said)]
        if said == right and not stream.error:
            return ""
        same = next((n for n, (a, b) in enumerate(zip(said, right, strict=False)) if a != b), None)
        where = "" if same is None else f", wrong from token {same}"
        return f"{named}: {len(said)} of {len(right)} tokens{where}; {stream.error or 'no error'}"
