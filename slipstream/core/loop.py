"""The loop that connects a draft and a target. It depends on neither tensors nor the wire."""

from collections.abc import AsyncGenerator

from slipstream.core.draft.ngram_draft import with_forced
from slipstream.core.policy.planner import Planner
from slipstream.core.ports import Draft, Target
from slipstream.core.round import Clock, NullObserver, Port, Round, RoundObserver, timed
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
    observer = observer or NullObserver()
    session = sequence.session
    at = Round(0, clock())
    while True:
        with timed(at, Port.VERIFY, clock, observer):
            at.verdict = await target.verify(sequence, at.proposal)
        sequence.append(at.verdict.tokens)
        observer.record(at)
        planner.record(at)
        yield at
        if at.verdict.finish_reason is not None:
            return
        remaining = session.num_prompt_tokens + session.max_tokens - len(sequence)
        verdict, plan = at.verdict, planner.plan(remaining, at.verdict)
        at = Round(at.index + 1, clock(), plan)
        if plan.max_depth > 0:
            with timed(at, Port.PROPOSE, clock, observer):
                at.proposal = await draft.propose(sequence, plan)
        at.proposal = with_forced(at.proposal, planner.forced(remaining, verdict))
