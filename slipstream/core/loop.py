"""The loop that connects a draft and a target. It depends on neither tensors nor the wire."""

from collections.abc import AsyncGenerator

from slipstream.core.draft.ngram_draft import with_forced
from slipstream.core.policy.planner import Planner
from slipstream.core.ports import Draft, Target
from slipstream.core.round import Clock, Port, PortCall, Round, RoundObserver
from slipstream.core.sequence import TokenSequence


async def decode(
    draft: Draft,
    target: Target,
    planner: Planner,
    sequence: TokenSequence,
    *,
    clock: Clock,
    observer: RoundObserver | None = None,
) -> AsyncGenerator[Round, None]:
    """Yield rounds until the target ends the request; append what becomes final to the sequence.

    The first round verifies an empty proposal, which is prefill. The caller releases the session
    when it is no longer needed, however the iteration ends.
    """
    session = sequence.session
    round_ = Round(0, clock())
    while True:
        with PortCall(round_, Port.VERIFY, clock, observer):
            round_.verdict = await target.verify(sequence, round_.proposal)
        round_.take_proposal()
        sequence.append(round_.verdict.tokens)
        if observer is not None:
            observer.record(round_)
        planner.record(round_)
        yield round_
        if round_.verdict.finish_reason is not None:
            return
        remaining = session.num_prompt_tokens + session.max_tokens - len(sequence)
        verdict, plan = round_.verdict, planner.plan(remaining, round_.verdict)
        round_ = Round(round_.index + 1, clock(), plan)
        if planner.leaves_draft(plan, remaining):
            await draft.release(session.session_id)
        if plan.max_depth > 0:
            with PortCall(round_, Port.PROPOSE, clock, observer):
                round_.proposal = await draft.propose(sequence, plan)
        round_.proposal = with_forced(round_.proposal, planner.forced(remaining, verdict))
