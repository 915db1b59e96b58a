"""A shadow over real targets, told of requests by hand, and what it should find there."""

import asyncio
import time
from contextlib import asynccontextmanager

import torch

from slipstream.client import AsyncClient
from slipstream.core.failover.breaker import Breakers
from slipstream.core.policy.profile import NGRAM
from slipstream.core.request.request import Ask, ModelFacts, make_request
from slipstream.core.types import SamplingParams
from slipstream.core.verify.keyed_noise import Purpose
from slipstream.core.verify.noise import gumbel
from slipstream.rpc.channel import ChannelOptions, Dialer
from slipstream_router.limits import Admission
from slipstream_router.replicas.discovery import parse_source
from slipstream_router.replicas.fleet import DrafterDefaults, Fleet, TargetNeeds
from slipstream_router.replicas.pool import Pool
from slipstream_router.replicas.probes import TargetProbe
from slipstream_router.replicas.replica import Hooks
from slipstream_router.shadow import AnsweredRequest, Shadow, ShadowOptions
from support.models.tiny_checkpoint import tiny_llama
from support.services.fleet import LIMIT_S, running

PROMPT = (70, 71, 72, 73, 70, 71, 72, 73, 70, 71)
FACTS = ModelFacts("tiny", 259, 4096, frozenset({0}))


def answered(output, *, model="tiny", sampling=None, num_drafted=1, request_id="r-1"):
    """A request with this output, as a router offers it."""
    ask = Ask(sampling or SamplingParams(), max_tokens=300, request_id=request_id)
    request = make_request("s", PROMPT, ask, FACTS, NGRAM)
    return AnsweredRequest(request, tuple(output), num_drafted, TargetNeeds(model))


def _fleet(targets):
    return Fleet(targets, [], defaults=DrafterDefaults(False), breakers=Breakers(time.monotonic))


NOBODY = _fleet([])


@asynccontextmanager
async def fleet_of(*workers):
    """The replicas of a router without the router; all of these targets are ready."""
    changed = asyncio.Event()
    source = parse_source(tuple(worker.address for worker in workers))
    probe = TargetProbe()
    targets = Pool(source, probe, Dialer(ChannelOptions()), hooks=Hooks(on_change=changed.set))
    upkeep = asyncio.get_running_loop().create_task(targets.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(targets.ready()) < len(workers):
                await changed.wait()
                changed.clear()
        yield _fleet(targets)
    finally:
        upkeep.cancel()
        await asyncio.wait({upkeep})
        await probe.aclose()


@asynccontextmanager
async def checking(worker, admission=None):
    """A shadow that checks all that it is offered, with this worker as the only target."""
    async with running(worker), fleet_of(worker) as fleet:
        shadow = Shadow(fleet, admission or Admission(64), ShadowOptions(1.0))
        checks = asyncio.get_running_loop().create_task(shadow.run())
        try:
            yield shadow
        finally:
            checks.cancel()
            await asyncio.wait({checks})


def num_ended(info) -> int:
    """Requests that something has become of."""
    return (
        info.num_checked
        + info.num_skipped
        + info.num_dropped
        + info.num_inconclusive
        + info.num_incomparable
    )


async def plain(folder, count: int, sampling=None, *, dtype="float32") -> tuple[int, ...]:
    """What the model says after PROMPT without speculation."""
    async with AsyncClient.embedded(str(folder), "none", dtype=dtype) as client:
        asked = sampling or SamplingParams()
        return (await client.generate(PROMPT, max_tokens=count, sampling=asked)).token_ids


def scores(tokens, sampling: SamplingParams, *, seed: int = 0):
    """What every token scores after `tokens` in the draw of a tiny model made with `seed`."""
    with torch.inference_mode():
        logits = tiny_llama(seed=seed).eval()(torch.tensor([tokens])).logits[0, -1].double()
    if sampling.is_greedy:
        return logits
    noise = gumbel(sampling.seed, len(tokens), 259, purpose=Purpose.DRAW)
    return logits / sampling.temperature + torch.from_numpy(noise)
