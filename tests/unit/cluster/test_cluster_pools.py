"""Laws of pools on Ray that need no Ray: plans, loads and scaling."""

from types import SimpleNamespace

import pytest

from slipstream.cluster.plan import (
    LOAD,
    ClusterPlan,
    PoolPlan,
    plan_from,
    wanted_drafts,
    wanted_targets,
)
from slipstream.cluster.service import ServiceLoad
from slipstream.core.errors import InvalidRequest
from support.telemetry.prometheus_names import exported

ARGUMENTS = {
    "target": {"options": {"model": "m", "pin_threads": True}, "num_gpus": 2, "port": 50061},
    "draft": {"options": {"draft": "vanilla:m"}, "max_replicas": 3, "resources": {"small": 1}},
    "store_url": "redis://here",
    "config": "/etc/slipstream.toml",
}


def test_a_plan_is_what_its_arguments_say():
    target, draft = ARGUMENTS["target"], {**ARGUMENTS["draft"], "load_per_replica": 3.0}
    pools = {"target": PoolPlan(**target), "draft": PoolPlan(**draft)}
    assert plan_from(ARGUMENTS) == ClusterPlan(**ARGUMENTS | pools)
    assert plan_from({"draft": None, "grace_s": 5}) == ClusterPlan(draft=None, grace_s=5)


def test_services_get_what_pools_share_and_their_own():
    plan = plan_from(ARGUMENTS)
    shared = ["--store-url", "redis://here", "--config", "/etc/slipstream.toml"]
    target = ["--grace-s", "30.0", "--model", "m", "--pin-threads", *shared, "--device", "cuda"]
    assert list(plan.flags("target")) == target
    assert list(plan.flags("draft")) == ["--grace-s", "30.0", "--draft", "vanilla:m", *shared]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"colour": "red"}, "args has 'colour'"),
        ({"target": None}, "must be a table"),
        ({"target": {"replicas": 2}}, "target of args has 'replicas'"),
        ({"target": {"min_replicas": "2"}}, "min_replicas of target of args is '2'"),
        ({"target": {"min_replicas": 0}}, "at least 1"),
        ({"draft": {"min_replicas": 2}}, "2 to 1"),
        ({"draft": {"port": 65536}}, "port is 65536"),
        ({"draft": {"load_per_replica": 0}}, "load_per_replica is 0"),
        ({"draft": {"options": {"store_url": "redis://x"}}}, "store_url is not one of a pool's"),
        ({"grace_s": 3601}, "grace_s is 3601"),
        ({"draft": {"options": "x"}}, "options of draft of args is 'x', but must be a table"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(arguments, reason):
    with pytest.raises(InvalidRequest, match=reason):
        plan_from(arguments)


def page_of(*metrics):
    """What Prometheus reads, with 1 of each."""
    from prometheus_client import generate_latest

    with exported(*metrics) as registry:
        return generate_latest(registry).decode().replace('state="value"', 'state="active"')


def test_the_load_of_a_target_is_its_sessions_and_what_waits():
    from slipstream.telemetry.catalog import SESSIONS, WAITING

    assert ServiceLoad("target").read(page_of(SESSIONS, WAITING), 0.0) == 2.0
    assert ServiceLoad("target").read("# nothing\n", 0.0) == 0.0


def test_the_load_of_a_draft_is_the_proposals_that_were_there_at_once_not_its_sessions():
    """Seconds that proposals took, in every second."""
    from slipstream.telemetry.catalog import DRAFT_ENGINE, DRAFT_QUEUE, SESSIONS, WAITING

    load = ServiceLoad("draft")
    assert load.read(page_of(SESSIONS, WAITING), 10.0) == 0.0
    page = page_of(SESSIONS, WAITING, DRAFT_QUEUE, DRAFT_ENGINE)
    assert load.read(page, 10.5) == pytest.approx((1 + 1) / 0.5)
    assert load.read(page, 11.0) == 0.0


def context(now, *loads):
    """What Serve shows a policy: a load of two is enough for a replica."""
    return SimpleNamespace(
        aggregated_metrics={LOAD: dict(enumerate(loads))} if loads else {},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 2.0),
        target_num_replicas=now,
    )


@pytest.mark.parametrize("wanted", [wanted_targets, wanted_drafts])
def test_a_pool_has_as_many_replicas_as_the_load_of_all_of_them_wants(wanted):
    assert wanted(context(1, 6.0))[0] == 3.0
    assert wanted(context(3, 0.1, 0.1, 0.2))[0] <= 1.0
    assert wanted(context(2))[0] == 2.0


def test_drafts_go_only_where_the_others_can_take_half_as_much_again():
    assert wanted_targets(context(3, 1.0, 1.5, 1.5))[0] == 2.0
    assert wanted_drafts(context(3, 1.0, 1.5, 1.5))[0] == 3.0
    assert wanted_drafts(context(3, 0.5, 1.0, 1.0))[0] == 1.875
