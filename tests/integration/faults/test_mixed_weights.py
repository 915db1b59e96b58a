"""Targets of one name with other weights or another element type: no answer is of two of them."""

import pytest

from slipstream.client import SamplingParams
from slipstream.core.errors import Unavailable
from slipstream.models.format.digests import weights_digest
from support.network.streams import busy, logprobs_of, read, text_of, tokens_of
from support.services import fleet
from support.services.fleet import routed, running, target_worker

NUM_TOKENS = 200
SAMPLED = {"max_tokens": NUM_TOKENS, "sampling": SamplingParams(temperature=0.9, seed=11)}
SAMPLED |= {"logprobs": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    for name in ("old", "new"):
        (base / name).mkdir()
    return tuple(fleet.save_models(base / name, seed=at) for at, name in enumerate(("old", "new")))


def pair(folders, differs):
    if differs == "weights":
        return [target_worker(folder) for folder in folders]
    return [target_worker(folders[0], dtype=at) for at in ("float32", "bfloat16")]


@pytest.mark.parametrize("differs", ["weights", "dtype"])
async def test_a_request_that_loses_its_target_ends_rather_than_mix_two(folders, differs):
    old, new = workers = pair(folders, differs)
    async with running(old, new), routed([old, new], target_wait_s=0.3) as client:
        stream = client.stream("hello", max_tokens=NUM_TOKENS)
        await read(stream, 20)
        first = await busy(workers)
        await first.stop()
        with pytest.raises(Unavailable, match=f"target {first.address} "):
            await read(stream)
        assert len((await client.generate("hello", max_tokens=3)).token_ids) == 3


async def test_among_mixed_weights_a_request_goes_on_at_an_equal_target(folders):
    old, new = (target_worker(folder) for folder in folders)
    twins = old.twin(), new.twin()
    workers = (old, new, *twins)
    async with running(*workers), routed(workers) as client:
        results = [await client.generate("hello", **SAMPLED) for _ in workers]
        plain = {(result.token_ids, result.text, result.logprobs) for result in results}
        assert len(plain) == 2  # requests that begin are spread over all weights
        stream = client.stream("hello", **SAMPLED)
        chunks = await read(stream, 1)
        await (await busy(workers)).stop()
        chunks += await read(stream)
        assert (tokens_of(chunks), text_of(chunks), logprobs_of(chunks)) in plain
        assert chunks[-1].stats.continuity.num_target_losses == 1


@pytest.mark.parametrize("differs", ["weights", "dtype"])
async def test_another_router_resumes_a_request_only_at_an_equal_target(folders, server, differs):
    old, new = pair(folders, differs)
    store = {"store_url": server.url, "store_timeout_s": 2.0}
    async with running(old, new), routed([old], **store) as one, routed([new], **store) as other:
        asked = {"max_tokens": NUM_TOKENS, "request_id": "r"}
        count = len(tokens_of(await read(one.stream("hello", **asked), 20)))
        with pytest.raises(Unavailable, match="with the weights, element type and numerics"):
            await read(other.stream("hello", **asked, num_received=count))


async def test_the_next_turn_of_a_session_has_new_weights_once_the_old_are_gone(folders, server):
    old, new = (target_worker(folder) for folder in folders)
    store = {"store_url": server.url, "store_timeout_s": 2.0}
    async with running(old, new), routed([old], **store) as one, routed([new], **store) as other:
        session = one.session()
        await session.generate("hello", max_tokens=4)
        again = await other.session(session.session_id).generate("again", max_tokens=4)
        assert len(again.token_ids) == 4
        assert again.stats.continuity.num_target_losses == 0


async def test_mixed_weights_are_logged_once_and_shown(folders, caplog):
    old, new = (target_worker(folder) for folder in folders)
    async with running(old, new), routed([old, new]) as client:
        await client.generate("hello", max_tokens=3)
        info = await client.server_info()
        shown = {at.address: at.weights_digest for at in info.replicas}
        assert (shown[old.address], shown[new.address]) == tuple(map(weights_digest, folders))
        ready = [at for at in info.replicas if at.state == "ready"]
        assert {at.reason for at in ready} == {"other targets of its model have other weights"}
    warnings = [record for record in caplog.records if "different weights" in record.getMessage()]
    assert len(warnings) == 1
