"""A served draft that has no room proposes nothing, and goes on once there is some."""

from contextlib import asynccontextmanager
from dataclasses import replace

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session
from support.models import tiny
from support.services.tiny_services import draft_place, is_empty, target_place, until

PROMPT = tuple(tiny.tokens(21))
SESSION = Session("s", len(PROMPT), 30)
OTHER = replace(SESSION, session_id="other")
PLAN = Plan(max_depth=4, max_nodes=12)


@asynccontextmanager
async def request(targets, drafts, session):
    """A request's target, which holds the prompt, and its draft."""
    target = await targets.prefilled(session, PROMPT)
    draft = drafts.remote(lambda: target.feed(targets.address))
    try:
        yield target, draft
    finally:
        await draft.release(session.session_id)
        await target.release(session.session_id)


async def test_without_room_for_keys_nothing_is_drafted_until_there_is_some(models):
    async with target_place(models) as targets, draft_place(models, "glide") as drafts:
        drafts.receivers.budget.limit = 1000
        async with request(targets, drafts, SESSION) as (_, draft):
            proposal = await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
            assert (len(proposal.tree), proposal.stopped_by) == (0, "lag")
            assert drafts.receivers.num_kv_bytes == 0
            drafts.receivers.budget.limit = None

            async def is_drafting():
                return len((await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)).tree) > 0

            await until(is_drafting)
        await until(lambda: is_empty(drafts))
        assert drafts.receivers.budget.num_bytes == 0


async def test_keys_of_a_parked_session_give_way_to_those_of_a_running_one(models):
    async with target_place(models) as targets, draft_place(models, "glide") as drafts:
        async with request(targets, drafts, SESSION) as (_, draft):
            await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
            await draft.park(60)
        drafts.receivers.budget.limit = drafts.receivers.kv_bytes("s")
        assert drafts.receivers.kv_bytes("s") > 0
        async with request(targets, drafts, OTHER) as (_, draft):
            assert len((await draft.propose(TokenSequence(OTHER, PROMPT), PLAN)).tree)
            assert drafts.receivers.kv_bytes("s") == 0 < drafts.receivers.kv_bytes("other")
        async with request(targets, drafts, SESSION) as (_, draft):
            assert len((await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)).tree), (
                "it is read again"
            )
