"""A model's drafts are one pool: all targets of the model share them, by need."""

import asyncio
import json

import pytest

from slipstream.client import AsyncClient, Mode, SamplingParams, SpeculationOptions, StopPolicy
from slipstream.core.policy.options import READING
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import Calibration
from slipstream.core.types import Shape, Verification
from slipstream.drafting.profile_file import ModelPair, profile_file
from slipstream.models.format.digests import file_digest
from slipstream.models.torch.loading import load_target_parts
from slipstream_router.replicas.pool import CROWD
from support.models.tiny_checkpoint import tiny_llama
from support.models.tiny_eagle import save_for
from support.network.relay import Relay
from support.services import fleet
from support.services.fleet import draft_worker, glide_of, num_ready, routed, running, target_worker

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)
PLAIN = SpeculationOptions(mode=Mode.OFF)
ASKED = {"max_tokens": 200, "sampling": SamplingParams(temperature=0.9, top_p=0.95, seed=11)}
CERTAIN = Calibration((1.0, 1.0))
SURE = Profile(Shape.CHAIN, stop=StopPolicy.FIXED, step_cost=0.3, row_cost=0.0, calibration=CERTAIN)
"""A draft that is sure of eight tokens, which cost the time of three, and wrong."""


@pytest.fixture
async def plain(folder):
    """Plain decoding in one process: the tokens of prompts."""
    async with AsyncClient.embedded(str(folder), "none", dtype="float32") as client:

        async def tokens(prompts, asked=ASKED):
            results = await asyncio.gather(*(client.generate(at, **asked) for at in prompts))
            return [result.token_ids for result in results]

        yield tokens


@pytest.fixture(params=READING)
def pair(request, folder, tmp_path):
    """A target, and a draft of a kind that reads it."""
    head = save_for(tiny_llama(), tmp_path / "head")
    name = str(glide_of(folder)) if request.param == "glide" else f"eagle3:{head}"
    return target_worker(folder, hidden_layers=(0, 1, 2)), draft_worker(name, folder)


def begin(client, prompts, speculation=FORCED):
    """Tasks of the requests; each returns its result."""
    calls = (client.generate(prompt, speculation=speculation, **ASKED) for prompt in prompts)
    return [*map(asyncio.create_task, calls)]


async def held(*workers):
    """How many sessions with a running request each of the engines holds."""
    return [(await worker.load()).num_sessions for worker in workers]


async def test_one_draft_serves_two_targets_of_a_model_at_once(target, draft, folder, plain):
    other = target.twin()
    prompts = [f"prompt {number}" for number in range(4)]
    async with running(target, other, draft), routed([target, other], [draft]) as client:
        requests = begin(client, prompts)

        async def feeds():
            loads = [await at.load() for at in (target, other, draft)]
            return [load.num_kv_streams for load in loads]

        await fleet.eventually(feeds, lambda found: found == [2, 2, 4])
        results = await asyncio.gather(*requests)
        load = await draft.load()
    assert [result.token_ids for result in results] == await plain(prompts)
    assert all(result.stats.speculation.num_spec_steps > 0 for result in results)
    assert load.num_steps < 3 * load.num_rounds  # steps are shared, of sessions of both


async def test_requests_of_three_targets_are_spread_evenly_over_two_drafts(target, folder, plain):
    targets = [target, target.twin(), target.twin()]
    drafts = [draft_worker(str(glide_of(folder)), folder) for _ in range(2)]
    prompts = [f"prompt {number}" for number in range(6)]
    async with running(*targets, *drafts), routed(targets, drafts) as client:
        idle = begin(client, prompts[:3], PLAIN)  # a request that drafts nothing counts for none
        await fleet.eventually(lambda: held(*targets), lambda found: found == [1, 1, 1])
        requests = begin(client, prompts)
        everyone = [*targets, *drafts]
        await fleet.eventually(lambda: held(*everyone), lambda found: found[3:] == [3, 3])
        results = await asyncio.gather(*requests, *idle)
    expected = await plain(prompts)
    assert [result.token_ids for result in results] == expected + expected[:3]


async def test_requests_that_run_move_to_a_draft_that_is_added_until_none_is_crowded(
    pair, tmp_path, plain, monkeypatch
):
    # Requests end within the second after which a list is read again otherwise.
    monkeypatch.setattr("slipstream_router.replicas.pool.POLL_S", 0.05)
    target, draft = pair
    other, drafts = draft.twin(), tmp_path / "drafts"
    prompts = [f"prompt {number}" for number in range(CROWD + 4)]
    async with running(target, draft, other):
        drafts.write_text(f"{draft.address}\n")
        async with routed([target], [f"file:{drafts}"], heartbeat_s=0.05) as client:
            await fleet.until(client, lambda info: num_ready(info, "draft") == 1)
            requests = begin(client, prompts)
            await fleet.eventually(lambda: held(draft), lambda found: found == [len(prompts)])
            drafts.write_text(f"{draft.address}\n{other.address}\n")
            shared = [CROWD + 2, 2]  # one on the other draft would leave this one crowded
            await fleet.eventually(lambda: held(draft, other), lambda found: found == shared)
            results = await asyncio.gather(*requests)
    assert [result.token_ids for result in results] == await plain(prompts)
    assert all(set(result.stats.speculation.fallbacks) <= {"no keys"} for result in results)


async def test_a_request_in_back_off_frees_its_draft(target, folder, plain):
    weights, profile = glide_of(folder), folder.parent / "profile.json"
    tokens = load_target_parts(str(folder), dtype="float32").tokenizer_hash
    digests = {"model.safetensors": file_digest(weights / "model.safetensors")}
    pair = ModelPair(folder.name, "glide", tokens, digests)
    profile.write_text(json.dumps(profile_file(SURE, pair, {})))
    draft = draft_worker(str(weights), folder, profile=profile)
    asked = {"max_tokens": 700, "sampling": SamplingParams(frequency_penalty=2.0, min_tokens=700)}
    mcsd = SpeculationOptions(verification=Verification.MCSD)  # rounds of it are not granted

    async def use():
        """Running requests, what the draft keeps for them, and the keys that it has read."""
        ours, theirs = await draft.load(), await target.load()
        kept = ours.num_sessions + ours.kv_bytes + ours.num_kv_streams + theirs.num_kv_streams
        return theirs.num_sessions, kept, ours.kv_streamed_bytes

    async with (
        running(target, draft),
        Relay(target.address, delay_s=0.003) as wire,
        routed([wire.address], [draft]) as client,
    ):
        await client.generate("first", max_tokens=8, speculation=FORCED)
        *_, first = await use()
        request = asyncio.create_task(client.generate("prompt", speculation=mcsd, **asked))
        await fleet.eventually(use, lambda at: at[:2] == (1, 0) and at[2] > first)
        result = await request
    assert [result.token_ids] == await plain(["prompt"], asked)
