"""What the ports promise, kept over a wire by RemoteTarget and RemoteDraft, and what becomes of
engines that fail, stay silent or are not there: one typed error, and nothing held."""

import asyncio

import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import CopySource, TokenTree
from slipstream.core.types import Proposal, ReplyTiming, Verdict
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_common import proposal_to_pb
from slipstream.rpc.exchange import Peer
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from support.models import scripted
from support.models.scripted import BOTH, LIMIT_S, dialled, first_round, proposed, reached
from support.network.ports import free_port


async def test_the_first_verification_opens_the_session_and_names_the_expected_target():
    engine = scripted.target_engine()
    verdicts = scripted.verdict(9), scripted.verdict(8, 7)
    async with dialled(engine, scripted.remote_target, *verdicts) as remote:
        assert remote.feed("10.0.0.1:7") is None
        proposal = Proposal(TokenTree.chain([5, 6]))
        sequence = TokenSequence(scripted.SESSION, (1, 2, 3))
        assert await remote.verify(sequence, Proposal()) == Verdict((9,), 0)
        sequence.append((9,))
        assert await remote.verify(sequence, proposal) == Verdict((8, 7), 0)
        assert remote.feed("10.0.0.1:7") == scripted.FEED
        await remote.release("s")
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds == ["open", "verify", "verify"]
    assert engine.got[0].open.expected == scripted.IDENTITY
    assert engine.got[0].open.session.fence == 7
    assert list(engine.got[1].verify.delta.tokens) == [1, 2, 3]
    again = engine.got[2].verify.delta  # the target knows what it made final itself
    assert (again.start, list(again.tokens)) == (4, [])
    assert list(engine.got[2].verify.proposal.tree.tokens) == [5, 6]


async def test_the_first_proposal_opens_the_session_for_this_target_and_names_its_keys():
    engine = scripted.draft_engine()
    proposal = Proposal(TokenTree.chain([4, 5]), stopped_by="depth")
    async with dialled(
        engine, scripted.remote_draft, proposed(proposal), proposed(Proposal(stopped_by="lag"))
    ) as remote:
        sequence = TokenSequence(scripted.SESSION, (1, 2, 3))
        first = await remote.propose(sequence, scripted.PLAN)
        sequence.append((9, 8))
        second = await remote.propose(sequence, scripted.PLAN)
    assert (first.tree, first.stopped_by, first.staleness) == (proposal.tree, "depth", 2)
    assert second.stopped_by == "lag"
    assert engine.got[0].open.target == scripted.IDENTITY
    assert engine.got[0].open.target_layout == scripted.LAYOUT
    assert engine.got[1].propose.plan.feed == scripted.FEED
    news = engine.got[2].propose.delta  # whatever became final since the last proposal
    assert (news.start, list(news.tokens)) == (3, [9, 8])
    assert engine.got[1].propose.plan.threshold == 0.5


def granted(*tokens, fallback="", proposing_s=0.005):
    """The verdict of a granted round on one right node, and on a wrong one as a copy."""
    answer, drafted = scripted.verdict(*tokens), Proposal(TokenTree.chain([tokens[0], 99]))
    answer.verdict.proposed.proposal.CopyFrom(proposal_to_pb(drafted))
    answer.verdict.proposed.num_copied = 1
    answer.verdict.num_accepted = 1
    answer.verdict.proposed.fallback, answer.verdict.proposing_s = fallback, proposing_s
    return answer


async def test_granted_rounds_are_awaited_without_a_request_until_one_falls_back():
    engine, sequence = scripted.target_engine(), TokenSequence(scripted.SESSION, (1, 2, 3))
    answers = (
        scripted.verdict(9),
        granted(8, 7),
        granted(6, 5, fallback="late"),
        scripted.verdict(4),
    )
    async with dialled(engine, scripted.remote_target, *answers) as remote:
        await remote.grant(scripted.PLAN, 1)
        assert (await remote.verify(sequence, Proposal())).proposal is None
        sequence.append((9,))
        await remote.grant(scripted.PLAN, 3)
        for tokens, word in (((8, 7), None), ((6, 5), "late")):
            verdict = await remote.verify(sequence, Proposal())
            sequence.append(verdict.tokens)
            assert (verdict.tokens, verdict.num_accepted) == (tokens, 1)
            assert verdict.proposal.tree.tokens == (tokens[0], 99)
            assert verdict.proposal.sources == (CopySource.LOOKUP,)
            assert (verdict.proposal.fallback, verdict.proposing_s) == (word, 0.005)
        assert (remote.num_due, remote.num_failed) == (0, 1)
        assert (await remote.verify(sequence, Proposal())).tokens == (4,)
    assert engine.kinds == ["open", "verify", "grant", "grant", "verify"]
    first, second = (engine.got[at].grant for at in (2, 3))
    assert (first.num_rounds, second.num_rounds, first.max_wait_ms) == (1, 3, 30_000)
    assert not second.plan.HasField("feed")  # the target asks the draft that reads there
    again = engine.got[4].verify.delta  # the target knows what it made final itself
    assert (again.start, list(again.tokens)) == (8, [])


@pytest.mark.parametrize(
    ("tokens", "field", "value"),
    [((8, 7), "num_accepted", 2), ((8, 100), "num_accepted", 1), ((8, 7), "num_copied", 3)],
)
async def test_a_granted_verdict_that_no_target_reaches_on_what_it_names_is_an_error(
    tokens, field, value
):
    answer = granted(*tokens)
    at = answer.verdict.proposed if field == "num_copied" else answer.verdict
    setattr(at, field, value)
    engine, sequence = scripted.target_engine(), TokenSequence(scripted.SESSION, (1, 2, 3))
    async with dialled(engine, scripted.remote_target, scripted.verdict(9), answer) as remote:
        await remote.grant(scripted.PLAN, 1)
        await remote.verify(sequence, Proposal())
        sequence.append((9,))
        with pytest.raises(errors.InternalError, match="gave a broken verdict"):
            await remote.verify(sequence, Proposal())


@BOTH
async def test_an_answer_has_all_its_times_with_serialisation(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(answer)
    ticks = iter(range(100))
    async with dialled(engine, make_remote, clock=lambda: next(ticks)) as remote:
        timing = (await first_round(remote)).timing
    spent = 2  # one tick for packing, one for unpacking
    assert timing == ReplyTiming(0.004, 0.001, 0.002, 0.0005, spent)


@BOTH
async def test_a_released_or_parked_stream_ends_and_again_is_fine(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(answer)
    async with reached(engine) as peer:
        await make_remote(peer).release("s")
        remote = make_remote(peer)
        await first_round(remote)
        await remote.release("s")
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
        await remote.release("s")
        with pytest.raises(errors.Unavailable, match="has ended the stream"):
            await first_round(remote)
    engine, parked = make_engine(), type(answer)(parked=draft_pb2.Parked())
    async with dialled(engine, make_remote, answer, parked) as remote:
        await first_round(remote)
        await remote.park(30)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds[-1] == "park"
    assert engine.got[-1].park.ttl_ms == 30_000


@BOTH
async def test_taking_a_session_over_and_ending_asks_for_nothing(make_engine, make_remote, answer):
    engine = make_engine()
    async with dialled(engine, make_remote) as remote:
        await remote.open(scripted.SESSION)
        remote.end()
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds == ["open"]


@BOTH
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        errors.SessionTaken("held with fence 8, not 7"),
        errors.ModelError("the best score of a position is nan"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_peer_is_raised_here(make_engine, make_remote, answer, when, error):
    engine = make_engine()
    engine.answers[when:] = [error]
    async with dialled(engine, make_remote) as remote:
        with pytest.raises(type(error), match=str(error)):
            await first_round(remote)
        with pytest.raises(errors.Unavailable):
            await first_round(remote)


@BOTH
async def test_a_replica_that_says_nothing_is_given_up_by_name(make_engine, make_remote, answer):
    engine = make_engine()
    async with dialled(engine, make_remote, None, round_s=0.2, token_s=0.1) as remote:
        with pytest.raises(errors.DeadlineExceeded, match=f"{engine.name} did not answer.*0.5 s"):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


@BOTH
async def test_the_deadline_of_the_request_ends_the_stream(make_engine, make_remote, answer):
    engine = make_engine()
    async with dialled(engine, make_remote, None, remaining=lambda: 1.0) as remote:
        with pytest.raises(errors.DeadlineExceeded):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    async with dialled(make_engine(), make_remote, remaining=lambda: -1.0) as late:
        with pytest.raises(errors.DeadlineExceeded):
            await first_round(late)


@BOTH
async def test_a_cancelled_round_frees_the_other_side(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(None)
    async with reached(engine) as peer:
        running = asyncio.get_running_loop().create_task(first_round(make_remote(peer)))
        await asyncio.wait_for(engine.waits.wait(), LIMIT_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


@BOTH
async def test_an_address_without_a_server_is_unavailable_and_named(
    make_engine, make_remote, answer
):
    address = f"127.0.0.1:{free_port()}"
    async with connect(address, ChannelOptions()) as channel:
        with pytest.raises(errors.Unavailable, match=f"replica {address} can't be reached"):
            await first_round(make_remote(Peer(f"replica {address}", channel)))


@BOTH
@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"", b"\x1a\x00"], ids=["junk", "empty", "parked"]
)
async def test_an_answer_that_is_none_is_no_answer(make_engine, make_remote, answer, data):
    engine = make_engine()
    async with dialled(engine, make_remote, data) as remote:
        with pytest.raises(errors.InternalError, match=engine.name):
            await first_round(remote)


async def test_a_broken_verdict_is_the_replicas_fault_and_a_tree_that_is_none_is_refused():
    verdict = target_pb2.Verdict(tokens=[1], finish_reason=77)  # type: ignore[arg-type]
    tree = common_pb2.TokenTree(tokens=[1, 2], parents=[1, -1])
    broken = draft_pb2.Proposed(proposal=common_pb2.Proposal(tree=tree))
    for engine, make_remote, answer, error, reason in (
        (
            *(scripted.target_engine(), scripted.remote_target),
            *(target_pb2.VerifyResponse(verdict=verdict), errors.InternalError, "broken verdict"),
        ),
        (
            *(scripted.draft_engine(), scripted.remote_draft),
            draft_pb2.SpeculateResponse(proposed=broken),
            *(errors.InvalidRequest, "tree is broken"),
        ),
    ):
        async with dialled(engine, make_remote, answer) as remote:
            with pytest.raises(error, match=reason):
                await first_round(remote)
