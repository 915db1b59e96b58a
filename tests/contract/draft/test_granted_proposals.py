"""What a draft promises a target that asks it for the proposals of granted rounds."""

from contextlib import asynccontextmanager
from dataclasses import replace

from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import Copying
from slipstream.core.types import Plan
from slipstream.rpc.conversion.convert import proposed_from_pb
from support.models import tiny
from support.services.background import until
from support.services.scripted_keys import (
    DEEP,
    LIMIT_S,
    NUM_KEYS,
    PROMPT,
    SESSION,
    Script,
    following,
    message,
)
from support.services.tiny_services import MAX_LAG


@asynccontextmanager
async def asked(models, keys):
    """A draft that a router has asked once, and the target that has its keys, all but two sent."""
    script = Script([message(keys, 0, NUM_KEYS - 2), "asks"])
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(TokenSequence(SESSION, PROMPT), DEEP)
        await drafts.receivers.wait("s", NUM_KEYS - 2, LIMIT_S)
        yield script, draft
        await draft.release("s")


async def test_a_target_gets_the_proposal_that_a_router_gets(models, keys):
    async with asked(models, keys) as (script, draft):
        (opening,) = script.asked
        assert (opening.session_id, opening.credential, opening.proposes) == ("s", "secret", True)
        last = message(keys, NUM_KEYS - 2, NUM_KEYS)
        asking = script.ask(len(PROMPT) - 2, PROMPT[-2:], DEEP, last)
        theirs = proposed_from_pb(await asking)
        ours = await draft.propose(TokenSequence(SESSION, PROMPT), DEEP)
        assert len(ours.tree) > 1
        assert (theirs.tree, theirs.stats, theirs.staleness) == (ours.tree, ours.stats, 0)
        assert theirs.timing.engine_s > 0


async def test_what_can_t_be_proposed_is_answered_without_a_proposal_and_more_may_follow(
    models, keys
):
    above = (len(PROMPT) + 1, ())  # more than the draft holds
    unknown, deep = (0, [10**6]), replace(DEEP, max_depth=MAX_LAG + 1)
    async with asked(models, keys) as (script, _):
        for (start, tokens), plan in ((above, DEEP), (unknown, DEEP), ((0, PROMPT), deep)):
            assert not (await script.ask(start, tokens, plan)).HasField("proposal")
        assert (await script.ask(0, PROMPT, DEEP)).HasField("proposal")


async def test_copies_of_the_text_stand_behind_what_is_drafted(models, keys):
    plan = Plan(2, 12, lookup=Copying(shortest=2, max_depth=6))
    text = [*PROMPT, *tiny.tokens(6), *tiny.tokens(3)]  # ends as it began before
    async with asked(models, keys) as (script, _):
        plain = await script.ask(0, text, replace(plan, lookup=None))
        both = await script.ask(0, text, plan)
        num_drafted = len(plain.proposal.tree.tokens)
        assert (plain.num_copied, both.num_copied > 0) == (0, True)
        assert len(both.proposal.tree.tokens) == num_drafted + both.num_copied
        assert both.proposal.tree.tokens[:num_drafted] == plain.proposal.tree.tokens


async def test_the_stream_of_a_target_ends_with_the_request(models, keys):
    async with asked(models, keys) as (script, draft):
        assert script.num_open == 1
        await draft.release("s")
        await until(lambda: script.num_open == 0)
