"""`make soak MINUTES=180`: mixed load for hours with a kill a minute; all that is held stays flat.

The first process of each role is never killed: what it holds is sampled from its start to its end.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import httpx2
import openai

from chaos import nursery
from chaos.cluster import Cluster, Pair, real_pair, tiny_pair
from chaos.soak_report import Samples
from chaos.traffic import ERRANDS, FORCED, TIMEOUT_S, Errand, Stream, Traffic, plain_results
from slipstream.client import AsyncChunkStream, RequestOptions, Result, SamplingParams
from support.services.http_front import async_client_of

SIZES = {"router": 2, "target": 2, "draft": 2, "gateway": 2}
NUM_STREAMS = 6
KILL_S, SAMPLE_S = 60.0, 10.0
_KEPT_S = "60"
"""How long what has ended is kept: far less than a soak, so that it is flat."""
_SLOW_S, _CANCELLED_AFTER, _ATTEMPTS = 0.3, 8, 8
_FIELDS = {"city": {"type": "string", "maxLength": 12}, "hot": {"type": "boolean"}}
_WEATHER = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS]}
_WEATHER |= {"additionalProperties": False}
_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": _WEATHER}}
_CITIES = ("a city and its weather", "another city")


def mixed(pair: Pair) -> list[Errand]:
    """All kinds of requests; a name's first word may be how their text is read."""
    plain = pair.shortened(ERRANDS)
    law, schema = SamplingParams(0.7, seed=5), RequestOptions(json_schema=_WEATHER)
    formed = [Errand("schemas", _CITIES, law, FORCED, 60, schema)]
    if pair.share > 1:  # the tiny model has no format of calls
        call = RequestOptions(tools=[_TOOL], tool_choice="required")
        formed.append(Errand("tools", _CITIES[:1], law, FORCED, 60, call))
    read = [
        Errand(f"{how} {at.name}", at.prompts, at.sampling, at.speculation, at.max_tokens)
        for how in ("slow", "cancel", "http")
        for at in plain[:2]
    ]
    return [*plain, *formed, *read]


class MixedTraffic(Traffic):
    """Streams of all kinds, each read in its own way; only counts stay of those that ended."""

    def __init__(self, results: dict[str, list[Result]], errands: Sequence[Errand]) -> None:
        answers = {name: tuple(at.token_ids for at in results[name]) for name in results}
        super().__init__(answers, errands)
        self._texts = {name: found[0].text for name, found in results.items()}
        self.fronts: Sequence[openai.AsyncOpenAI] = ()
        self.counts: Counter[str] = Counter()

    async def _read(self, errand: Errand, turn: int, start: Callable) -> bool:
        self.counts[errand.name] += 1
        is_well = await super()._read(errand, turn, start)
        self.streams = [stream for stream in self.streams if stream.ended is None]
        return is_well

    async def _take_all(self, stream: Stream, chunks: AsyncChunkStream) -> None:
        how = stream.errand.name.partition(" ")[0]
        async with chunks:
            if how == "http":
                return await self._take_http(stream)
            async for chunk in chunks:
                await self._take(stream, chunk)
                if how == "slow":
                    await asyncio.sleep(_SLOW_S)  # as a caller who reads slowly
                if how == "cancel" and len(stream.tokens) >= _CANCELLED_AFTER:
                    return

    async def _take_http(self, stream: Stream) -> None:
        """Have the text from a front, under the same id again while something is away."""
        for attempt in itertools.count(1):
            front = self.fronts[attempt % len(self.fronts)]
            try:
                stream.text = await _text(front, stream)
                return
            except (openai.APIError, httpx2.HTTPError):
                if attempt == _ATTEMPTS:
                    raise
            await asyncio.sleep(1)  # as its caller would

    def _fault(self, stream: Stream) -> str:
        name = stream.errand.name
        right = self._answers[name][stream.turn]
        if name.startswith("cancel") and tuple(stream.tokens) == right[: len(stream.tokens)]:
            stream.tokens = [*right]
        if name.startswith("http") and stream.text == self._texts[name]:
            stream.tokens = [*right]
        return super()._fault(stream)


async def _text(front: openai.AsyncOpenAI, stream: Stream) -> str:
    errand, sampling = stream.errand, stream.errand.sampling
    chunks = await front.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": errand.prompts[0]}],
        max_tokens=errand.max_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed,
        logit_bias={str(token): int(value) for token, value in sampling.logit_bias},
        extra_headers={"Idempotency-Key": stream.request_id},
        timeout=TIMEOUT_S,
        stream=True,
    )
    async with chunks:
        return "".join([at.choices[0].delta.content or "" async for at in chunks if at.choices])


class SoakCluster(Cluster):
    """Two processes of each role, which keep what has ended for a minute."""

    @property
    def fronts(self) -> list[str]:
        return [f"http://{self._at(name)}" for name in self.names("gateway")]

    def _router(self, name: str) -> Iterable[str]:
        kept = (f"--{what}-ttl-s" for what in ("session", "request", "park"))
        return [*super()._router(name), *(word for flag in kept for word in (flag, _KEPT_S))]


async def kill_often(cluster: Cluster, samples: Samples, until: float) -> None:
    """Kill the second process of a role each minute, and Redis once, halfway."""
    half = (time.monotonic() + until) / 2
    roles, redis = itertools.cycle(SIZES), ["redis-0"]
    while (left_s := until - time.monotonic()) > KILL_S:
        await asyncio.sleep(min(KILL_S, left_s))
        name = redis.pop() if redis and time.monotonic() > half else f"{next(roles)}-1"
        samples.note_kill(name)
        cluster.members[name].kill()
        await cluster.settled()


async def soak(pair: Pair, minutes: float, folder: Path) -> Samples:
    errands = mixed(pair)
    traffic, samples = MixedTraffic(plain_results(pair.target, errands), errands), Samples()
    cluster = SoakCluster(pair, folder, sizes=SIZES)
    try:
        await cluster.start()
        traffic.fronts = [async_client_of(url) for url in cluster.fronts]
        until = time.monotonic() + 60 * minutes
        async with traffic.flowing(cluster.address, NUM_STREAMS):
            killing = asyncio.create_task(kill_often(cluster, samples, until))
            while time.monotonic() < until:
                samples.take(cluster)
                await asyncio.sleep(SAMPLE_S)  # the time between two samples
            await killing
        samples.end(traffic.counts, traffic.faults, cluster.stalls())
    finally:
        await cluster.stop()
        for front in traffic.fronts:
            await front.close()
    return samples


def main() -> int:
    """Soak, write the report, and print what came of it."""
    parser = argparse.ArgumentParser("soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--model", choices=("tiny", "real"), default="real")
    parser.add_argument("--report", type=Path, default=Path("soak.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nursery.begin(folder)
        pair = real_pair() if asked.model == "real" else tiny_pair(folder)
        nursery.finish()
        samples = asyncio.run(soak(pair, asked.minutes, folder))
    samples.write(asked.report)
    sys.stdout.write(samples.summary() + "\n")
    return 0 if samples.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
