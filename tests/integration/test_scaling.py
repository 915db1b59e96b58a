"""Laws of scaling, of real processes under load: who comes gets work, and who goes loses none."""

import sys
import time

import pytest
import pytest_asyncio

from chaos import nursery
from chaos.traffic import FORCED, Errand, Traffic, plain_answers, sampled
from support.services import fleet
from support.services.growing import growing
from support.state.redis_server import valkey_binary

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs more than one loopback address"),
]
NUM_STREAMS = 6
NUM_TOKENS = 80
ERRANDS = (
    Errand("greedy", ("the quick brown fox",), speculation=FORCED, max_tokens=NUM_TOKENS),
    Errand("sampled", ("a slow red hen",), sampled(0.8, 7), FORCED, NUM_TOKENS),
    Errand("session", ("hello", "go on"), sampled(0.7, 3, top_p=0.9), FORCED, NUM_TOKENS),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    nursery.begin(tmp_path_factory.mktemp("nursery"))
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def answers(model):
    return plain_answers(str(model), ERRANDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model, answers, tmp_path_factory):
    """One of each service, found by the registry, and a name for all routers."""
    assert all(len(tokens) == NUM_TOKENS for said in answers.values() for tokens in said)
    nursery.finish()
    async with growing(model, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def drained(cluster, traffic, name):
    """End a process under load; the streams that ran then."""
    running = traffic.running(time.monotonic())
    await cluster.drain(name)
    return running


def assert_nobody_noticed(traffic, running):
    """Streams say what plain decoding says; those that ran when a process was told to end, did so
    without being moved."""
    assert traffic.faults == []
    assert running
    assert not any(stream.num_losses for stream in running)
    assert not any(stream.num_resumed for stream in traffic.streams)


async def test_engines_added_under_load_get_sessions_and_those_that_end_lose_none(cluster, answers):
    traffic = Traffic(answers, ERRANDS)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        (old,), (guide,) = await cluster.listed("target"), await cluster.listed("draft")
        target = await cluster.add("target")
        await cluster.shared_by(old, target)
        assert await cluster.listed("draft") == {guide}
        drafts = [await cluster.add("draft") for _ in range(2)]
        await cluster.shared_by(guide, *drafts)
        assert await cluster.listed("target") == {old, target}
        running = await drained(cluster, traffic, guide)
        running += await drained(cluster, traffic, drafts[0])
        assert await cluster.listed("draft") == {drafts[1]}
        running += await drained(cluster, traffic, old)
        assert await cluster.listed("target") == {target}
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)


async def test_clients_that_know_a_name_reach_a_router_that_came_later_and_leave_one_that_goes(
    cluster, answers
):
    traffic = Traffic(answers, ERRANDS)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        later = await cluster.add("router")
        await cluster.reached(later)
        running = await drained(cluster, traffic, "router-0")
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)
