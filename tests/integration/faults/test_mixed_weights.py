"""Targets of one name with other weights or another element type: no answer is of two of them."""

import pytest

from slipstream.client import SamplingParams
from slipstream.core.errors import Unavailable
from slipstream.models.store.digests import weights_digest
from support.services import fleet
from support.services.fleet import num_ready, routed, running, target_worker
from support.state.redis_server import RedisServer

NUM_TOKENS = 200
SAMPLED = {"max_tokens": NUM_TOKENS, "sampling": SamplingParams(temperature=0.9, seed=11)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one name and one tokenizer, with different weights."""
    base = tmp_path_factory.mktemp("models")
    for name in ("old", "new"):
        (base / name).mkdir()
    return tuple(fleet.save_models(base / name, seed=at) for at, name in enumerate(("old", "new")))


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


async def begun(client, **asked):
    """A stream of which some tokens have come."""
    stream, count = client.stream("hello", max_tokens=NUM_TOKENS, **asked), 0
    async for chunk in stream:
        count += len(chunk.token_ids)
        if count >= 20:
            break
    return stream, count


async def busy(workers):
    """The workers, that which runs a request first."""
    loads = [(await worker.load()).num_sessions for worker in workers]
    return [worker for _, worker in sorted(zip(loads, workers, strict=True), key=lambda at: -at[0])]


async def test_a_request_that_loses_its_target_ends_rather_than_mix_weights(folders):
    old, new = workers = [target_worker(folder) for folder in folders]
    async with running(old, new), routed([old, new], target_wait_s=0.3) as client:
        await fleet.until(client, lambda info: num_ready(info, "target") == 2)
        stream, _ = await begun(client)
        first, _ = await busy(workers)
        await first.stop()
        with pytest.raises(Unavailable, match=f"target {first.address} "):
            async for _ in stream:
                pass
        assert len((await client.generate("hello", max_tokens=3)).token_ids) == 3


async def test_among_mixed_weights_a_request_goes_on_at_an_equal_target(folders):
    old, new = (target_worker(folder) for folder in folders)
    twins = old.twin(), new.twin()
    workers = (old, new, *twins)
    async with running(*workers), routed(workers) as client:
        await fleet.until(client, lambda info: num_ready(info, "target") == 4)
        plain = {(await client.generate("hello", **SAMPLED)).token_ids for _ in workers}
        assert len(plain) == 2  # requests that begin are spread over all weights
        stream, tokens = client.stream("hello", **SAMPLED), []
        async for chunk in stream:
            if not tokens:
                first, *_ = await busy(workers)
                await first.stop()
            tokens += chunk.token_ids
        assert tuple(tokens) in plain
        assert chunk.stats.continuity.num_target_losses == 1


@pytest.mark.parametrize("differs", ["weights", "dtype"])
async def test_another_router_resumes_a_request_only_at_an_equal_target(folders, server, differs):
    old = target_worker(folders[0])
    new = (
        target_worker(folders[1])
        if differs == "weights"
        else target_worker(folders[0], dtype="bfloat16")
    )
    store = {"store_url": server.url, "store_timeout_s": 2.0}
    async with running(old, new), routed([old], **store) as one, routed([new], **store) as other:
        _, count = await begun(one, request_id="r")
        with pytest.raises(Unavailable, match="with the weights, element type and numerics"):
            async for _ in other.stream(
                "hello", max_tokens=NUM_TOKENS, request_id="r", num_received=count
            ):
                pass


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
        info = await fleet.until(client, lambda info: num_ready(info, "target") == 2)
        await client.generate("hello", max_tokens=3)
        shown = {at.address: at.weights_digest for at in info.replicas}
        assert (shown[old.address], shown[new.address]) == tuple(map(weights_digest, folders))
        ready = [at for at in info.replicas if at.state == "ready"]
        assert {at.reason for at in ready} == {"other targets of its model have other weights"}
    warnings = [record for record in caplog.records if "different weights" in record.getMessage()]
    assert len(warnings) == 1
