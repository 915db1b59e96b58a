"""Pools of drafts and targets on Ray: the tokens of plain processes, whoever is killed."""

from contextlib import closing
from itertools import islice

import pytest

from slipstream.client import Client, Mode, SpeculationOptions
from support.network.streams import tokens_of
from support.services.pools import ray_pools
from support.services.processes import command_line, freeze, kill, thaw

PROMPT = "the quick brown fox"
LONG = 800
FORCED = SpeculationOptions(mode=Mode.FORCED)


@pytest.fixture(scope="module")
def pools(model, tmp_path_factory):
    with ray_pools(model, tmp_path_factory.mktemp("ray"), min_replicas=2, max_replicas=2) as pools:
        pools.router.until_logged("is ready", times=3)
        yield pools
        children = [*pools.services("target"), *pools.services("draft")]
    assert [command_line(pid) for pid in children] == [""] * 3


@pytest.fixture
def client(pools):
    with Client(pools.router.ready()) as client:
        yield client


def test_rounds_go_past_ray(client):
    replicas = client.server_info().replicas
    assert sorted(at.role.value for at in replicas) == ["draft", "draft", "target"]
    assert {at.address.rpartition(":")[0] for at in replicas} == {"127.0.0.1"}


def test_a_killed_replica_costs_no_token_and_ray_replaces_all(pools, client, plain):
    drafts, ((target, actor),) = pools.services("draft"), pools.services("target").items()
    with closing(client.stream(PROMPT, max_tokens=LONG, speculation=FORCED)) as chunks:
        before = list(islice(chunks, 5))
        freeze(target)  # so that the request is still going on when its draft is gone
        for keeper in drafts.values():
            kill(keeper)
        thaw(target)
        between = list(islice(chunks, 5))
        kill(actor)
        after = list(chunks)
    assert tokens_of([*before, *between, *after]) == plain(PROMPT, LONG)
    assert [command_line(pid) for pid in (target, *drafts)] == [""] * 3
    assert pools.until("target", number=1).keys().isdisjoint({target})
    assert pools.until("draft", number=2).keys().isdisjoint(drafts)


def test_replicas_that_came_later_are_used_like_those_before(pools, client, plain):
    pools.router.until_logged(" is ready", times=6)
    result = client.generate(PROMPT, max_tokens=60, speculation=FORCED)
    assert result.token_ids == plain(PROMPT, 60)
    assert result.stats.speculation.num_draft_tokens > 0
