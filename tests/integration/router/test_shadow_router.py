"""The shadow check of a router: everything that speculated is found to be what it should be."""

import asyncio
import re
import signal

import pytest

from slipstream.client import (
    AsyncClient,
    Mode,
    SamplingParams,
    SpeculationOptions,
    StopPolicy,
    Verification,
)
from slipstream.models.store.digests import weights_digest
from slipstream.options import build
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from support.services import fleet
from support.services.fleet import draft_worker, glide_of, routed, running, target_worker
from support.services.shadows import PROMPT, num_ended, plain, scores

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)
LOOKUP = SpeculationOptions(mode=Mode.FORCED, drafter="ngram")
OFF = SpeculationOptions(mode=Mode.OFF)
LAW = SpeculationOptions(mode=Mode.FORCED, verification=Verification.MCSD)
GREEDY = SamplingParams()
COOL = SamplingParams(temperature=0.1, seed=3)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
HOT = SamplingParams(temperature=1.5, seed=12, repetition_penalty=1.1)


async def checks(client, count):
    """What has come of so many checks."""
    info = await fleet.until(client, lambda info: num_ended(info.shadow) == count)
    return info.shadow


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_all_that_speculated_is_checked_and_nothing_differs(folder, dtype, caplog):
    target = target_worker(folder, dtype=dtype)
    draft = draft_worker(str(glide_of(folder)), folder, dtype=dtype)
    async with running(target, draft), routed([target], [draft], shadow_rate=1.0) as client:
        asked = [(FORCED, GREEDY), (FORCED, SAMPLED), (FORCED, HOT), (LOOKUP, GREEDY)]
        results = await asyncio.gather(
            *(
                client.generate("abcabcabc", max_tokens=24, sampling=law, speculation=how)
                for how, law in asked
            )
        )
        await client.generate("abc", max_tokens=8, speculation=OFF)
        await client.generate("abc", max_tokens=8, speculation=LAW)
        shadow = await checks(client, 6)
        await fleet.eventually(target.load, lambda load: load.num_sessions == 0)
    assert all(result.stats.speculation.num_draft_tokens for result in results)
    assert (shadow.num_offered, shadow.num_checked, shadow.num_diverged) == (6, 4, 0)
    assert (shadow.num_inconclusive, shadow.num_incomparable) == (1, 1)
    assert shadow.num_checked_tokens == sum(len(result.token_ids) for result in results)
    assert (shadow.rate, shadow.smallest_margin, shadow.largest_margin) == (1.0, None, None)
    assert "differs" not in caplog.text


async def test_a_target_that_answers_for_another_model_is_found_out(folder, tmp_path, caplog):
    impostor = fleet.save_models(tmp_path, seed=1)
    ours, theirs = await plain(folder, 24, COOL), await plain(impostor, 24, COOL)
    at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) == 2)
    targets = [target_worker(folder), target_worker(impostor, digest=weights_digest(folder))]
    async with running(*targets), routed(targets, shadow_rate=1.0) as client:
        asked = {"sampling": COOL, "speculation": LOOKUP}
        result = await client.generate(PROMPT, max_tokens=24, **asked)
        assert result.stats.speculation.num_draft_tokens
        shadow = await checks(client, 1)
    answer, seed = (theirs, 0) if result.token_ids == theirs else (ours, 1)
    right = (ours, theirs)[seed]
    assert result.token_ids == answer
    assert (shadow.num_checked, shadow.num_diverged) == (1, 1)
    there = scores((*PROMPT, *answer[:at]), COOL, seed=seed)
    margin = float(there[right[at]] - there[answer[at]])
    assert shadow.largest_margin == shadow.smallest_margin == pytest.approx(margin, rel=1e-3)
    (message,) = (text for text in caplog.messages if "differs" in text)
    assert re.match(
        rf"request {result.request_id} differs from plain decoding at output position {at}: it has"
        rf" token {answer[at]}, plain decoding draws {right[at]} by a margin of [\d.]+, no near",
        message,
    )


async def test_checks_come_to_their_end_while_requests_run(folder):
    target = target_worker(folder)
    async with (
        running(target),
        routed([target], shadow_rate=1.0) as client,
        client.stream(PROMPT, max_tokens=3000, speculation=LOOKUP) as stream,
    ):
        await anext(stream)
        for _ in range(3):
            await client.generate(PROMPT, max_tokens=20, speculation=LOOKUP)
        shadow = await checks(client, 3)
        assert (shadow.num_checked, shadow.num_diverged) == (3, 0)
        assert (await client.server_info()).num_requests == 1
        await anext(stream)


async def test_a_router_that_stops_gives_its_check_up(folder):
    before = asyncio.all_tasks()
    target = target_worker(folder)
    async with running(target):
        async with routed([target], shadow_rate=1.0) as client:
            await client.generate(PROMPT, max_tokens=800, speculation=LOOKUP)
            info = await fleet.until(client, lambda info: info.shadow.num_checked_tokens)
            assert info.shadow.num_checked_tokens < 800
        await fleet.eventually(target.load, lambda load: load.num_sessions == 0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_router_that_is_told_to_stop_goes_on_with_requests_but_not_with_checks(folder):
    target = target_worker(folder)
    async with running(target):
        config = build(
            RouterConfig, address="127.0.0.1:0", targets=(target.address,), shadow_rate=1.0
        )
        router = Router(config)
        port = await router.start()
        serving = asyncio.get_running_loop().create_task(router.serve())
        await asyncio.wait_for(router.ready(), fleet.LIMIT_S)
        async with (
            AsyncClient(f"127.0.0.1:{port}", retries=False) as client,
            client.stream(PROMPT, max_tokens=3000, speculation=OFF) as stream,
        ):
            await anext(stream)
            await client.generate(PROMPT, max_tokens=800, speculation=LOOKUP)
            await fleet.until(client, lambda info: info.shadow.num_checked_tokens)
            assert (await target.load()).num_sessions == 2
            signal.raise_signal(signal.SIGTERM)
            await fleet.eventually(target.load, lambda load: load.num_sessions == 1)
            await anext(stream)
        await asyncio.wait_for(serving, fleet.LIMIT_S)


async def test_without_a_rate_nothing_is_checked(folder):
    target = target_worker(folder)
    async with running(target), routed([target]) as client:
        await client.generate(PROMPT, max_tokens=20, speculation=LOOKUP)
        num_rounds = (await target.load()).num_rounds
        shadow = (await client.server_info()).shadow
        assert (shadow.rate, shadow.num_offered) == (0.0, 0)
        assert (await target.load()).num_rounds == num_rounds
