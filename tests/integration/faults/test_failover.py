"""Requests outlive their target: another one is told what was final, and goes on as it would."""

import asyncio

import pytest

from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions, StopPolicy
from slipstream.core.errors import Unavailable
from support.network.streams import busy, logprobs_of, read, text_of, tokens_of
from support.services.fleet import draft_worker, glide_of, routed, running, target_worker

FORCED = SpeculationOptions(Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3, lookup=False)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11)
GREEDY = SamplingParams()
NUM_TOKENS = 120


@pytest.fixture(scope="module")
def plain(folder):
    client = Client.embedded(str(folder), "none", dtype="float32")
    return {
        sampling: client.generate("hello", max_tokens=NUM_TOKENS, sampling=sampling, logprobs=2)
        for sampling in (GREEDY, SAMPLED)
    }


@pytest.fixture
def targets(folder):
    first = target_worker(folder)
    return [first, first.twin()]


@pytest.fixture
def draft(folder):
    return draft_worker(str(glide_of(folder)), folder)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_stream_goes_on_at_another_target_with_the_tokens_it_would_have_had(
    targets, draft, plain, sampling
):
    asked = {"max_tokens": NUM_TOKENS, "sampling": sampling, "speculation": FORCED, "logprobs": 2}
    async with running(*targets, draft), routed(targets, [draft]) as client:
        stream = client.stream("hello", **asked)
        begun = await read(stream, 20)
        await (await busy(targets)).stop()
        chunks = begun + await read(stream)
    assert tokens_of(chunks) == plain[sampling].token_ids
    assert text_of(chunks) == plain[sampling].text
    assert logprobs_of(chunks) == plain[sampling].logprobs
    stats = chunks[-1].stats
    assert stats.continuity.num_target_losses == 1
    assert stats.continuity.is_kept
    assert stats.speculation.num_accepted_draft_tokens > 0
    assert stats.num_output_tokens == len(plain[sampling].token_ids)


async def test_target_and_draft_may_be_lost_at_once(targets, draft, plain):
    async with running(*targets, draft), routed(targets, [draft]) as client:
        stream = client.stream("hello", max_tokens=NUM_TOKENS, speculation=FORCED)
        begun = await read(stream, 20)
        await asyncio.gather((await busy(targets)).stop(), draft.stop())
        begun += await read(stream, 20)
        await draft.start()
        chunks = begun + await read(stream)
    assert tokens_of(chunks) == plain[GREEDY].token_ids
    assert chunks[-1].stats.speculation.fallbacks


async def test_without_any_target_a_request_waits_no_longer_than_it_is_told(targets, folder):
    target = targets[0]
    async with running(target), routed([target], target_wait_s=0.3) as client:
        stream = client.stream("hello", max_tokens=NUM_TOKENS)
        await read(stream, 20)
        await target.stop()
        with pytest.raises(Unavailable):
            await read(stream)


async def test_the_next_turn_of_a_session_goes_to_a_target_that_never_saw_it(targets, folder):
    with Client.embedded(str(folder), "none", dtype="float32") as embedded:
        session = embedded.session()
        expected = [session.generate(text, max_tokens=20) for text in ("one", "two")]
    async with running(*targets), routed(targets) as client, client.session() as session:
        first = await session.generate("one", max_tokens=20)
        holder = [at for at in targets if (await at.load()).num_parked]
        await holder[0].stop()
        second = await session.generate("two", max_tokens=20)
    assert [first.token_ids, second.token_ids] == [at.token_ids for at in expected]
