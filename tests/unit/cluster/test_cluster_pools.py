"""Laws of pools on Ray that need no Ray: plans, the directory, its files, and scaling."""

from types import SimpleNamespace

import pytest

from slipstream.cluster.directory import TTL_S, AddressFiles, Directory, Listing
from slipstream.cluster.plan import ClusterPlan, PoolPlan, plan_from
from slipstream.cluster.scaling import LOAD, TARGETS_WAIT, WAITING, wanted_drafts, wanted_targets
from slipstream.cluster.service import Gauges, gauges_of
from slipstream.core.errors import InvalidRequest
from support.telemetry.prometheus_names import exported

PLANS = [
    ClusterPlan(),
    ClusterPlan(draft=None, grace_s=5),
    ClusterPlan(
        target=PoolPlan(options={"model": "m", "pin_threads": True}, num_gpus=2, port=50061),
        draft=PoolPlan(options={"draft": "vanilla:m"}, max_replicas=3, resources={"small": 1}),
        store_url="redis://here",
        config="/etc/slipstream.toml",
    ),
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_what_its_arguments_say(plan):
    assert plan_from(plan.arguments()) == plan


def test_services_are_told_what_pools_share_and_their_own():
    plan = PLANS[2]
    shared = ["--store-url", "redis://here", "--config", "/etc/slipstream.toml"]
    target = ["--grace-s", "30.0", "--model", "m", "--pin-threads", *shared, "--device", "cuda"]
    assert list(plan.flags("target")) == target
    assert list(plan.flags("draft")) == ["--grace-s", "30.0", "--draft", "vanilla:m", *shared]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"colour": "red"}, "args has 'colour'"),
        ({"target": None}, "must be a table"),
        ({"target": {"replicas": 2}}, "target has 'replicas'"),
        ({"target": {"min_replicas": "2"}}, "min_replicas of target is '2'"),
        ({"target": {"min_replicas": 0}}, "at least 1"),
        ({"draft": {"min_replicas": 2}}, "2 to 1"),
        ({"draft": {"port": 65536}}, "port is 65536"),
        ({"draft": {"load_per_replica": 0}}, "load_per_replica is 0"),
        ({"draft": {"num_cpus": -1}}, "num_cpus is -1"),
        ({"draft": {"options": {"store_url": "redis://x"}}}, "store_url is not one of a pool's"),
        ({"grace_s": 3601}, "grace_s is 3601"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(arguments, reason):
    with pytest.raises(InvalidRequest, match=reason):
        plan_from(arguments)


def test_gauges_are_read_under_the_names_that_services_export():
    from prometheus_client import generate_latest

    from slipstream.telemetry.catalog import DRAFT_WAIT_SHARE, SESSIONS, WAITING

    with exported(SESSIONS, WAITING, DRAFT_WAIT_SHARE) as registry:
        page = generate_latest(registry).decode().replace('state="value"', 'state="active"')
    assert gauges_of(page) == Gauges(num_sessions=1, num_waiting=1, draft_wait=1)
    assert gauges_of("# nothing\n") == Gauges()


async def test_whoever_is_silent_is_listed_no_more_and_targets_wait_is_their_mean():
    now = 0.0
    directory = Directory(clock=lambda: now)
    assert await directory.announce("draft", "a:1", 0.0) == 0.0
    assert await directory.announce("target", "t:1", 0.2) == 0.2
    assert await directory.announce("target", "t:2", 0.6) == pytest.approx(0.4)
    listing = await directory.listing()
    assert listing == Listing({"target": ("t:1", "t:2"), "draft": ("a:1",)}, is_whole=False)
    now = TTL_S - 1
    await directory.announce("target", "t:2", 0.6)
    now = TTL_S
    assert await directory.listing() == Listing({"target": ("t:2",), "draft": ()}, is_whole=True)
    assert await directory() == {"targets": 1, "drafts": 0}


def test_a_directory_that_has_just_begun_strikes_nobody_out():
    files = AddressFiles(["target", "draft"])
    try:
        assert files.path("target").read_text() == ""
        files.update(Listing({"target": ("t:1", "t:2"), "draft": ("d:1",)}, is_whole=True))
        assert files.path("target").read_text() == "t:1\nt:2\n"
        files.update(Listing({"target": ("t:3",), "draft": ()}, is_whole=False))
        assert files.path("target").read_text() == "t:1\nt:2\nt:3\n"
        assert files.path("draft").read_text() == "d:1\n"
        files.update(Listing({"target": ("t:3",), "draft": ()}, is_whole=True))
        assert files.path("target").read_text() == "t:3\n"
        assert files.path("draft").read_text() == ""
    finally:
        files.remove()
    assert not files.path("target").exists()


def context(now, *, loads=(), waiting=0.0, targets_wait=0.0, running=None):
    """What Serve shows a policy: two sessions each are enough for a replica."""
    metrics = {
        LOAD: dict(enumerate(loads)),
        WAITING: dict.fromkeys(range(len(loads)), waiting),
        TARGETS_WAIT: dict.fromkeys(range(len(loads)), targets_wait),
    }
    return SimpleNamespace(
        aggregated_metrics=metrics if loads else {},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 2.0),
        target_num_replicas=now,
        current_num_replicas=now if running is None else running,
    )


def test_targets_are_as_many_as_their_load_wants():
    assert wanted_targets(context(1, loads=[6.0]))[0] == 3.0
    assert wanted_targets(context(3, loads=[0.5, 0.5, 1.0]))[0] == 1.0
    assert wanted_targets(context(2))[0] == 2.0


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ({"loads": [6.0], "targets_wait": 0.2}, 3.0),
        ({"loads": [6.0], "targets_wait": 0.05}, 1),
        ({"loads": [2.0], "targets_wait": 0.4, "waiting": 1.5}, 2),
        ({"loads": [2.0], "targets_wait": 0.4, "waiting": 0.0}, 1.0),
        ({}, 1),
    ],
)
def test_drafts_grow_only_where_targets_wait_for_them(seen, wanted):
    assert wanted_drafts(context(1, **seen))[0] == wanted


def test_a_draft_that_is_on_its_way_is_waited_for():
    assert wanted_drafts(context(2, loads=[2.0], targets_wait=0.4, waiting=2.0, running=1))[0] == 2


def test_drafts_shrink_when_nobody_queues_there():
    assert wanted_drafts(context(3, loads=[1.0, 0.5, 0.5], targets_wait=0.2))[0] == 1.0
    queue = context(3, loads=[1.0, 0.5, 0.5], targets_wait=0.2, waiting=0.5)
    assert wanted_drafts(queue)[0] == 3
