"""The router among real targets and drafts: sessions keep their keys, and engines are freed."""

from dataclasses import replace

import pytest

from slipstream.client import AsyncClient, Mode, SamplingParams, SpeculationOptions, StopPolicy
from slipstream.core.errors import DeadlineExceeded
from slipstream.core.policy.options import DRAFTERS
from support.services.fleet import eventually, routed, running

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
GLIDE = replace(FORCED, drafter="glide")
ENDLESS = SamplingParams(temperature=0.9, seed=3, logit_bias=((0, -100.0),))


@pytest.fixture
async def embedded(folder):
    async with AsyncClient.embedded(str(folder), "none", dtype="float32") as client:
        yield client


async def is_free(*workers):
    """Whether nobody holds a session or a byte, in the end."""
    for worker in workers:
        await eventually(
            worker.load,
            lambda load: (load.num_sessions, load.num_parked, load.kv_bytes) == (0, 0, 0),
        )
    return True


async def test_each_draft_behind_a_router_puts_out_the_tokens_of_embedded_decoding(trio, embedded):
    asked = {"max_tokens": 60, "sampling": SAMPLED}
    expected = await embedded.generate("hello", **asked)
    async with trio.client() as client:
        for drafter in DRAFTERS:
            options = replace(FORCED, drafter=drafter)
            result = await client.generate("hello", **asked, speculation=options)
            assert result.token_ids == expected.token_ids
            assert result.stats.speculation.num_spec_steps > 0 or drafter == "ngram"
    assert await is_free(trio.target, *trio.drafts)


async def test_a_cancelled_stream_and_a_deadline_free_both_engines(trio):
    async with trio.client() as client:
        async with client.stream("hello", max_tokens=4000, speculation=GLIDE) as stream:
            for _ in range(3):
                await anext(stream)
            assert (await trio.target.load()).num_sessions == 1
            assert (await trio.drafts[0].load()).num_sessions == 1
        assert await is_free(trio.target, trio.drafts[0])
        info = await eventually(client.server_info, lambda info: info.num_requests == 0)
        assert [at.num_requests for at in info.replicas] == [0] * 4
        with pytest.raises(DeadlineExceeded):
            await client.generate("hello", max_tokens=4000, timeout_s=0.5, speculation=GLIDE)
        assert await is_free(trio.target, trio.drafts[0])


@pytest.mark.parametrize("options", [GLIDE, SpeculationOptions(mode=Mode.OFF)])
async def test_a_turn_that_a_stop_string_ended_within_granted_rounds_goes_on_behind_it(
    trio, embedded, options
):
    asked = {"max_tokens": 80, "sampling": ENDLESS}
    whole = (await embedded.generate("hello", **asked)).text
    asked["stop"] = [whole[20:24]]
    async with trio.client() as client:
        ours, theirs = client.session(), embedded.session()
        for prompt in ("hello", "and then?"):
            result = await ours.generate(prompt, speculation=options, **asked)
            expected = await theirs.generate(prompt, **asked)
            assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
            assert result.stats.num_prompt_tokens == expected.stats.num_prompt_tokens
        assert result.stats.num_cached_tokens >= expected.stats.num_cached_tokens
        await ours.aclose()
        await theirs.aclose()
    assert await is_free(trio.target, *trio.drafts)


async def test_a_session_goes_on_with_its_keys_where_they_are(target, draft, embedded):
    other = target.twin()
    async with running(target, other, draft), routed([target, other], [draft]) as client:
        ours, theirs = client.session(), embedded.session()
        for prompt in ("hello", "and then?", "the end"):
            asked = {"max_tokens": 20, "sampling": ENDLESS}
            result = await ours.generate(prompt, speculation=FORCED, **asked)
            expected = await theirs.generate(prompt, **asked)
            assert result.token_ids == expected.token_ids
            assert result.stats.num_prompt_tokens == expected.stats.num_prompt_tokens
            assert (result.stats.num_cached_tokens > 20) == (prompt != "hello")
        loads = [await worker.load() for worker in (target, other, draft)]
        assert sorted(load.num_parked for load in loads[:2]) == [0, 1]
        assert loads[2].num_parked == 1
        await ours.aclose()
        await theirs.aclose()
        assert await is_free(target, other, draft)
        assert (await client.server_info()).num_sessions == 0
