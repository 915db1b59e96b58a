"""The loop that connects a draft and a target. It knows neither tensors nor where the two live."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from slipstream.core.lookup_draft import with_forced
from slipstream.core.planner import NO_PLAN, Planner
from slipstream.core.ports import Draft, Target
from slipstream.core.types import Delta, Plan, Proposal, Session, Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """One propose and one verify; the first round of a request proposes nothing (prefill)."""

    plan: Plan
    proposal: Proposal
    verdict: Verdict


async def decode(
    draft: Draft, target: Target, planner: Planner, session: Session, prompt: Sequence[int]
) -> AsyncGenerator[Round, None]:
    """Yield rounds until the target says that the request is finished.

    The first round verifies an empty proposal: that is what prefill is. Both engines are told
    the whole prompt; what they hold of it from an earlier turn they only compare. The caller
    releases the session when it needs it no more, however the iteration ends.
    """
    tokens = list(prompt)
    told_target = told_draft = 0
    plan, proposal = NO_PLAN, Proposal()
    while True:
        verdict = await target.verify(session, Delta.since(told_target, tokens), proposal)
        tokens += verdict.tokens
        told_target = len(tokens)
        planner.record(proposal, verdict)
        yield Round(plan, proposal, verdict)
        if verdict.finish_reason is not None:
            return
        remaining = session.num_prompt_tokens + session.max_tokens - len(tokens)
        plan = planner.plan(remaining, verdict)
        proposal = Proposal()
        if plan.max_depth > 0:
            proposal = await draft.propose(session, Delta.since(told_draft, tokens), plan)
            told_draft = len(tokens)
        proposal = with_forced(proposal, planner.forced(remaining, verdict))
