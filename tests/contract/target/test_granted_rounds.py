"""What a target promises of granted rounds: the same tokens as requested ones, by proposals that it
requests itself, and a word for each that has none."""

import asyncio

import pytest
from grpc import StatusCode
from grpc.aio import EOF

from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Proposal, Session
from slipstream.rpc.conversion.convert_common import message_of, proposal_to_pb
from slipstream.rpc.leases import Lease
from slipstream.rpc.v1 import draft_pb2, target_pb2
from slipstream_target.granted import Inbox
from support.models import tiny
from support.network.streams import refusal
from support.services.served_target import LIMIT_S

PROMPT = tuple(tiny.tokens(20))
NUM_TOKENS = 50
SESSION = Session("s", len(PROMPT), NUM_TOKENS)
OTHER = Session("t", len(PROMPT), NUM_TOKENS)
PLAN = message_of(draft_pb2.Plan, Plan(max_depth=8, max_nodes=12))
PARK = target_pb2.VerifyRequest(park=draft_pb2.Park(ttl_ms=60_000))


@pytest.fixture
async def right(served):
    """The tokens of plain rounds, each of them requested, the prompt's included."""
    stream = await served.open(OTHER)
    tokens = await stream.rounds(PROMPT, NUM_TOKENS)
    await stream.end()
    return tokens


async def grant(stream, num_rounds, plan=None, wait_ms=1000 * LIMIT_S):
    granted = target_pb2.GrantRounds(num_rounds=num_rounds, plan=plan, max_wait_ms=wait_ms)
    await stream.call.write(target_pb2.VerifyRequest(grant=granted))


async def verdicts(stream, count):
    """The next answers of a `Verify` stream."""
    answers = [await asyncio.wait_for(stream.call.read(), LIMIT_S) for _ in range(count)]
    return [answer.verdict for answer in answers]


def spelled(found):
    return [token for verdict in found for token in verdict.tokens]


class HandDraft:
    """A draft that a test plays by hand, and how many positions it was sent."""

    def __init__(self, served, stream, **said):
        self._opening = served.request(stream, (1,), **{"proposes": True, **said})
        self.call = served.stub.StreamKv()
        self.num_keys = 0

    async def open(self):
        await self.call.write(self._opening)
        return self

    async def asked(self):
        while True:
            slice_ = await asyncio.wait_for(self.call.read(), LIMIT_S)
            self.num_keys += slice_.count
            if slice_.HasField("propose"):
                return slice_.propose

    async def propose(self, *tokens, num_copied=0):
        proposal = proposal_to_pb(Proposal(TokenTree.chain(tokens), stopped_by="depth"))
        proposed = draft_pb2.Proposed(proposal=proposal, num_copied=num_copied)
        await self.answer(proposed)

    async def answer(self, proposed):
        await self.call.write(target_pb2.StreamKvRequest(proposed=proposed))


async def test_granted_plain_rounds_have_the_tokens_of_requested_ones(served, stream, right):
    first = await stream.verify(0, PROMPT)
    await grant(stream, 5)
    await grant(stream, 3)
    found = [first, *await verdicts(stream, 8)]
    assert (*PROMPT, *spelled(found)) == right[: len(PROMPT) + 9]
    assert not first.HasField("proposed")
    assert all(
        verdict.HasField("proposed") and not verdict.proposed.fallback for verdict in found[1:]
    )


async def test_a_draft_is_asked_for_each_granted_round_behind_the_keys_of_what_became_final(
    served, stream, right
):
    draft = await HandDraft(served, stream).open()
    found = [await stream.verify(0, PROMPT)]
    await grant(stream, 4, PLAN)
    told = list(PROMPT)
    for num_right in (3, 0, 5, 2):
        asked = await draft.asked()
        told[asked.delta.start :] = asked.delta.tokens
        assert tuple(told) == right[: len(told)]
        assert draft.num_keys == len(told) - 1  # all that there are
        assert (asked.plan.max_depth, asked.plan.max_nodes) == (8, 12)
        path = (*right[len(told) : len(told) + num_right], tiny.VOCAB - 1)
        await draft.propose(*path, num_copied=1)
        found += await verdicts(stream, 1)
        assert found[-1].num_accepted >= num_right
        assert found[-1].proposed.num_copied == 1
        assert tuple(found[-1].proposed.proposal.tree.tokens) == path
    assert (*PROMPT, *spelled(found)) == right[: len(PROMPT) + len(spelled(found))]


async def test_a_granted_plan_is_cut_to_what_the_request_may_still_have(served):
    stream = await served.open(Session("s", len(PROMPT), 4))
    draft = await HandDraft(served, stream).open()
    await stream.verify(0, PROMPT)
    await grant(stream, 9, PLAN)
    depths = []
    for _ in range(2):
        depths.append((await draft.asked()).plan.max_depth)
        await draft.propose(tiny.VOCAB - 1)
        await verdicts(stream, 1)
    (last,) = await verdicts(stream, 1)  # its only token is the target's own
    assert (depths, last.finish_reason != 0) == ([2, 1], True)
    await stream.end()


async def silent(draft):
    await draft.asked()


async def leaving(draft):
    await draft.asked()
    draft.call.cancel()


async def refusing(draft):
    await draft.asked()
    await draft.answer(draft_pb2.Proposed())


async def lying(draft):
    await draft.asked()
    await draft.propose(10**6)


async def overdrawn(draft):
    await draft.asked()
    await draft.propose(1, num_copied=2)


async def deep(draft):
    await draft.asked()
    await draft.propose(*[1] * 9)


async def absent(draft):
    draft.call.cancel()


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (silent, "late"),
        (leaving, "unavailable"),
        (refusing, "unavailable"),
        (lying, "invalid"),
        (overdrawn, "invalid"),
        (deep, "invalid"),
        (absent, "unavailable"),
    ],
)
async def test_a_granted_round_without_a_proposal_is_plain_and_the_last(
    served, stream, right, act, word
):
    draft = await HandDraft(served, stream).open()
    found = [await stream.verify(0, PROMPT)]
    if act is absent:
        await act(draft)
    await grant(stream, 5, PLAN, wait_ms=300)
    if act is not absent:
        await act(draft)
    found += await verdicts(stream, 1)
    assert found[-1].proposed.fallback == word
    await grant(stream, 5)  # on its way when the round fell back
    start = len(PROMPT) + len(spelled(found))
    found.append(await stream.verify(start, ()))  # the next answer is that of a request
    assert not found[-1].HasField("proposed")
    assert (*PROMPT, *spelled(found)) == right[: len(PROMPT) + 3]
    draft.call.cancel()


async def test_a_proposal_that_comes_too_late_is_no_other_round_s(served, stream):
    draft = await HandDraft(served, stream).open()
    await stream.verify(0, PROMPT)
    await grant(stream, 1, PLAN, wait_ms=50)
    await draft.asked()
    (late,) = await verdicts(stream, 1)
    again = await stream.verify(len(PROMPT) + 2, ())
    await grant(stream, 1, PLAN)
    (still,) = await verdicts(stream, 1)
    assert tuple(it.proposed.fallback for it in (late, again, still)) == ("late", "", "late")
    await draft.propose(1)  # and now it may be asked again
    await stream.verify(len(PROMPT) + 4, ())
    await grant(stream, 1, PLAN)
    assert list((await draft.asked()).delta.tokens)
    await draft.propose(1)
    assert not (await verdicts(stream, 1))[0].proposed.fallback
    draft.call.cancel()


async def test_a_draft_may_come_after_its_round_was_granted_and_another_take_its_place(
    served, stream
):
    await stream.verify(0, PROMPT)
    await grant(stream, 1, PLAN)
    first = await HandDraft(served, stream).open()
    await first.asked()
    await first.propose(tiny.VOCAB - 1)
    await verdicts(stream, 1)
    second = await HandDraft(served, stream).open()
    reader = await HandDraft(served, stream, proposes=False).open()
    await served.until(lambda load: load.num_kv_streams == 3)
    await grant(stream, 1, PLAN)
    assert (await second.asked()).delta.start <= len(PROMPT)  # which the router has told it
    await second.propose(tiny.VOCAB - 1)
    (verdict,) = await verdicts(stream, 1)
    assert not verdict.proposed.fallback
    for draft in (first, second, reader):
        draft.call.cancel()


async def test_no_granted_round_begins_once_the_session_is_to_be_parked():
    async def sent():
        yield target_pb2.VerifyRequest(grant=target_pb2.GrantRounds(num_rounds=40))
        yield PARK

    inbox, kinds = Inbox(Lease("s", 0), sent()), []
    inbox.is_granting = True
    while (message := await inbox.next()) is not None:
        kinds.append(message.WhichOneof("message"))
        await asyncio.sleep(0)  # in which another message is read
    assert kinds[-1] == "park"
    assert len(kinds) < 5


async def test_a_session_that_is_parked_ends_its_grants_and_may_go_back_behind_them(served, right):
    stream = await served.open(SESSION)
    await stream.verify(0, PROMPT)
    await grant(stream, 40)
    await verdicts(stream, 3)
    await stream.call.write(PARK)
    kinds = []
    while (answer := await asyncio.wait_for(stream.call.read(), LIMIT_S)) is not EOF:
        kinds.append(answer.WhichOneof("message"))
    assert kinds == ["verdict"] * (len(kinds) - 1) + ["parked"]
    again = await served.open(SESSION, fence=1)
    verdict = await again.verify(0, right[: len(PROMPT) + 2])
    assert (verdict.num_cached, *verdict.tokens) == (len(PROMPT) + 1, right[len(PROMPT) + 2])
    await again.end()


async def test_a_session_that_is_taken_over_goes_on_with_its_new_stream_alone(served, right):
    old = await served.open(SESSION)
    draft = await HandDraft(served, old).open()
    await old.verify(0, PROMPT)
    await grant(old, 5, PLAN)
    await draft.asked()
    new = await served.open(SESSION, fence=1)
    assert (await refusal(old.call.read())).code() is StatusCode.ABORTED
    assert await new.rounds(PROMPT, 5) == right[: len(PROMPT) + 5]
    assert await draft.call.code() is StatusCode.OK
    await new.end()


async def test_a_proposal_that_was_not_requested_ends_the_draft_s_stream_alone(
    served, stream, right
):
    draft = await HandDraft(served, stream).open()
    await draft.propose(1)
    status = await refusal(draft.call.read())
    assert (status.code(), status.details()) == (
        StatusCode.INVALID_ARGUMENT,
        "a proposal was sent that was not requested",
    )
    assert await stream.rounds(PROMPT, 3) == right[: len(PROMPT) + 3]


async def test_more_messages_than_a_stream_holds_for_later_are_refused(served, stream):
    await stream.verify(0, PROMPT)
    for _ in range(80):
        await grant(stream, 1, PLAN, wait_ms=1000)
    (late,) = await verdicts(stream, 1)
    status = await refusal(stream.call.read())
    assert (late.proposed.fallback, status.code()) == ("late", StatusCode.INVALID_ARGUMENT)
    assert status.details() == "more than 64 messages wait for a round"
