"""What processes hold stays flat while their neighbours are killed, under callers of every kind.

The first process of each role is never killed. `make chaos KILLS=500` takes an hour or more.
"""

import asyncio
import itertools
import re
import statistics
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import openai
import pytest
import redis

from chaos.scenario import disturbed
from chaos.traffic import TIMEOUT_S, plain_results
from support.services.http_front import async_client_of

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(7200),
    pytest.mark.asyncio(loop_scope="module"),
]
SIZES = {"router": 2, "target": 2, "draft": 2, "gateway": 2}
KEPT_S = "15"
"""Time for which what has ended is kept: far less than a run, so that it is flat."""
ALLOWED = {"rss_mib": 16.0, "descriptors": 16.0, "threads": 4.0, "children": 0.0, "keys": 24.0}
ALLOWED_PART, WARM_UP = 0.05, 0.25
"""Part of its median that a figure may grow by, too, and of the samples that is left out."""


@pytest.fixture(scope="module")
def cluster_options():
    kept = (f"--{what}-ttl-s" for what in ("session", "request", "park"))
    return {"sizes": SIZES, "kept": [word for flag in kept for word in (flag, KEPT_S)]}


def figures(cluster):
    """What each process that is never killed holds now, and the store."""
    with suppress(redis.ConnectionError), redis.Redis(port=cluster.ports["redis-0"]) as store:
        yield "store keys", store.dbsize()
    for name in (f"{role}-0" for role in SIZES):
        process = Path(f"/proc/{cluster.members[name].pid}")
        status, tasks = (process / "status").read_text(), [*(process / "task").iterdir()]
        yield f"{name} rss_mib", int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024
        yield f"{name} descriptors", len([*(process / "fd").iterdir()])
        yield f"{name} threads", len(tasks)
        yield f"{name} children", sum(len((it / "children").read_text().split()) for it in tasks)


def growth(series):
    """The median of differences over half of the time: outliers at either end do not count."""
    half = len(series) // 2
    return 2 * statistics.median(b - a for a, b in zip(series, series[half:], strict=False))


def grown(samples):
    """What grew by more than is allowed, and by how much."""
    kept = {name: series[round(len(series) * WARM_UP) :] for name, series in samples.items()}
    return {
        name: growth(series)
        for name, series in kept.items()
        if growth(series) > ALLOWED[name.split()[-1]] + ALLOWED_PART * statistics.median(series)
    }


async def ask_over_http(fronts, errand, text):
    """Have the answer from one front or the other, again and again; while something is away, under
    the same id, as its caller would."""
    bias = {str(token): int(value) for token, value in errand.sampling.logit_bias}
    asked = {"model": "", "max_tokens": errand.max_tokens, "temperature": 0, "logit_bias": bias}
    asked |= {"messages": [{"role": "user", "content": errand.prompts[0]}], "timeout": TIMEOUT_S}
    number = 0
    for front in itertools.cycle(fronts):
        try:
            headers = {"Idempotency-Key": f"http-{number}"}
            answer = await front.chat.completions.create(**asked, extra_headers=headers)
        except (openai.APIError, httpx2.HTTPError):
            await asyncio.sleep(0.5)  # as its caller would
            continue
        assert answer.choices[0].message.content == text
        number += 1


async def test_what_processes_hold_stays_flat(cluster, pair, load, report, num_kills):
    first = next(errand for errand in load.errands if errand.name == "greedy")
    slow = replace(first, name="slow", pause_s=0.3)
    leaving = replace(first, name="leaving", leaves_after=8)
    answers = load.answers | dict.fromkeys(("slow", "leaving"), load.answers["greedy"])
    load = replace(load, errands=[*load.errands, slow, leaving], answers=answers, num_streams=6)
    text = plain_results(pair.target, [first])["greedy"][0].text
    samples = defaultdict(list)
    urls = [f"http://127.0.0.1:{cluster.ports[f'gateway-{number}']}" for number in range(2)]
    async with (
        async_client_of(urls[0]) as one,
        async_client_of(urls[1]) as other,
        disturbed(cluster, load, report, "kills under callers of every kind") as chaos,
    ):
        asking = asyncio.create_task(ask_over_http([one, other], first, text))
        for _, role in zip(range(num_kills), itertools.cycle(SIZES), strict=False):
            await chaos.back(await chaos.kill(f"{role}-1"))
            for name, value in figures(cluster):
                samples[name].append(value)
            assert not asking.done(), asking.exception()
        asking.cancel()
        await asyncio.wait({asking})
        await chaos.idle()
    assert not grown(samples)
