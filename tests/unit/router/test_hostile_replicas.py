"""Laws of replicas that answer nonsense: the one replica is marked, and everything else goes on."""

import asyncio
import math
from contextlib import asynccontextmanager

import pytest

from slipstream.core.request.server_info import ReplicaState
from slipstream.rpc.channel import ChannelOptions, Dialer
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream_router.replicas.pool import Pool, fixed
from slipstream_router.replicas.probes import DraftProbe
from slipstream_router.replicas.replica import Heartbeat, Hooks, Replica
from support.network.hostile_replicas import (
    GARBAGE,
    REFUSALS,
    draft_description,
    draft_replies,
    flips,
    hostile,
    says,
)
from support.services.background import until

ATTACKS = {"no message": says(GARBAGE), **REFUSALS}
NAN, INF = math.nan, math.inf
FORGED = "a\n2026-01-01 INFO forged \x1b[31m"


class Pooled:
    """A pool over a fine draft and others, and what is seen of them."""

    def __init__(self, fine, others):
        self.num_changes = 0
        self.fine, self.others = fine, others
        self.pool = Pool(
            fixed(fine, *others),
            DraftProbe(),
            Dialer(ChannelOptions()),
            heartbeat=Heartbeat(0.02, 60.0),
            hooks=Hooks(self._on_change),
        )
        self.running = asyncio.get_running_loop().create_task(self.pool.run())

    def _on_change(self):
        self.num_changes += 1

    def at(self, address) -> Replica | None:
        return next((at for at in self.pool if at.address == address), None)

    async def until(self, holds):
        """Wait until that holds of every replica that is not fine, while the fine one is ready."""
        await until(lambda: self.running.done() or self._holds(holds))
        assert not self.running.done(), self.running.exception()

    def _holds(self, holds):
        fine = self.at(self.fine)
        is_ready = fine is not None and fine.state is ReplicaState.READY
        return is_ready and all(holds(self.at(address)) for address in self.others)


@asynccontextmanager
async def pooled(**attacks):
    """A pool over a draft of these replies, and a fine one."""
    async with hostile(draft_replies()) as fine, hostile(draft_replies(**attacks)) as other:
        pooled = Pooled(fine, [other])
        try:
            yield pooled
        finally:
            pooled.running.cancel()
            await asyncio.wait({pooled.running})


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ["Watch", "DescribeDraft"])
async def test_an_answer_that_is_none_marks_a_replica_and_the_pool_goes_on(method, attack, caplog):
    with caplog.at_level("INFO"):
        async with pooled(**{method: ATTACKS[attack]}) as at:
            await at.until(lambda replica: replica.reason not in ("", "not reached yet"))
            (other,) = at.others
            replica = at.at(other)
            assert replica.state is ReplicaState.CONNECTING
            assert replica.reason.isprintable()
    about = [record for record in caplog.records if other in record.getMessage()]
    assert len(about) == 1
    ours = [record for record in caplog.records if record.name.startswith("slipstream")]
    assert not [record for record in ours if record.exc_info]


async def test_a_load_that_is_no_message_marks_the_replica_and_the_pool_goes_on():
    async with pooled(GetDraftLoad=says(GARBAGE)) as at:
        await at.until(lambda replica: "no GetDraftLoadResponse" in replica.reason)


@pytest.mark.parametrize("attack", REFUSALS)
async def test_a_load_that_is_refused_in_any_way_is_an_answer(attack):
    async with pooled(GetDraftLoad=REFUSALS[attack]) as at:
        await at.until(lambda replica: replica.state is ReplicaState.READY)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": FORGED},
        {"kind": "vanilla" * 10_000},
        {"dtype": FORGED},
        {"target_model_id": FORGED},
        {"incarnation": FORGED},
        {"model_id": "x" * 10_000},
        {"profile": {"threshold": NAN}},
        {"profile": {"step_cost": INF}},
        {"profile": {"row_cost": -1.0}},
        {"profile": {"max_depth": 2**32 - 1}},
        {"profile": {"shape": 99}},
        {"protocol_version": 2**32 - 1},
    ],
    ids=lambda values: str(values)[:40],
)
async def test_a_draft_that_describes_itself_with_nonsense_is_unfit(values):
    described = draft_description()
    for name, value in values.items():
        if name == "profile":
            described.profile.CopyFrom(draft_pb2.DraftProfile(**value))
        else:
            is_identity = name in common_pb2.ModelIdentity.DESCRIPTOR.fields_by_name
            setattr(described.identity if is_identity else described, name, value)
    async with pooled(DescribeDraft=says(described.SerializeToString())) as at:
        await at.until(lambda replica: replica.state is ReplicaState.UNFIT)
        reason = at.at(at.others[0]).reason
        assert reason.isprintable()
        assert len(reason) < 300


@pytest.mark.parametrize("step_s", [NAN, INF, -INF, -1.0, 1e308])
async def test_a_hint_that_is_no_time_is_not_used(step_s):
    described = draft_description(step_s=step_s).SerializeToString()
    async with pooled(DescribeDraft=says(described)) as at:
        await at.until(lambda replica: replica.state is ReplicaState.READY)
        facts = at.at(at.others[0]).described.facts
        assert facts.step_s is None or math.isfinite(facts.step_s)


async def test_a_health_that_flips_without_end_is_looked_at_now_and_then():
    beats = 0

    async def counted(context, messages):
        nonlocal beats
        async for _ in messages:
            beats += 1
            yield draft_pb2.GetDraftLoadResponse().SerializeToString()

    async with pooled(Watch=flips, GetDraftLoad=counted) as at:
        await at.until(lambda replica: beats >= 20)
        assert at.num_changes <= beats
