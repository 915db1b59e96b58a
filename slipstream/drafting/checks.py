"""Checks of a request to a draft, before any of it is used. Pure: no wire, no models."""

from slipstream.core.errors import InvalidRequest, PromptTooLong, check_token_ids
from slipstream.core.policy.options import SpeculationOptions, check_combination
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.sequence import Delta
from slipstream.core.types import Plan, Session, Shape

MAX_ID_LENGTH = 256
MAX_TOKENS = 1 << 20
"""Tokens of a session with a draft that has no context length of its own."""


def check_session(session: Session, context_length: int | None) -> None:
    """Raise `InvalidRequest` for a session that the draft has no room for."""
    if len(session.session_id) > MAX_ID_LENGTH:
        raise InvalidRequest(
            f"the session id has {len(session.session_id)} characters, but may have up to"
            f" {MAX_ID_LENGTH}"
        )
    limit = MAX_TOKENS if context_length is None else context_length
    if session.num_prompt_tokens + session.max_tokens > limit:
        raise PromptTooLong(
            f"a prompt of {session.num_prompt_tokens} tokens and up to {session.max_tokens} new"
            f" ones exceed the draft's context of {limit} tokens"
        )


def check_delta(delta: Delta, session: Session, vocab_size: int) -> None:
    """Raise `InvalidRequest` for tokens that are none, or more than the session can have."""
    limit = session.num_prompt_tokens + session.max_tokens
    if delta.end > limit:
        raise InvalidRequest(f"the session would have {delta.end} tokens, but {limit} at most")
    check_token_ids("the delta", delta.tokens, vocab_size)


def check_plan(plan: Plan, session: Session, facts: DraftFacts, vocab_size: int) -> None:
    """Raise `InvalidRequest` for a plan that the draft can't follow in the session's mode."""
    SpeculationOptions(
        max_draft_tokens=plan.draft_depth or plan.max_depth, max_nodes=plan.max_nodes
    )
    options = SpeculationOptions(
        shape=plan.shape,
        stop=plan.stop,
        threshold=plan.threshold,
        widths=plan.widths or None,
        verification=session.verification,
    )
    check_combination(options, facts.kind, has_decision_model=facts.has_decision_model)
    if facts.max_lag is not None and plan.draft_depth > facts.max_lag:
        raise InvalidRequest(
            f"max_depth is {plan.draft_depth}, but the draft was trained for paths of at most"
            f" {facts.max_lag}"
        )
    _check_roots(plan, vocab_size)


def _check_roots(plan: Plan, vocab_size: int) -> None:
    if plan.shape is not Shape.FORK:
        if plan.roots:
            raise InvalidRequest(f"the plan has roots, but its shape is {plan.shape.value}")
        return
    if not 1 <= len(plan.roots) <= plan.max_nodes:
        raise InvalidRequest(
            f"the plan has {len(plan.roots)} roots, but needs 1 to {plan.max_nodes} for shape fork"
        )
    if len(set(plan.roots)) < len(plan.roots):
        raise InvalidRequest("the plan names a root twice")
    check_token_ids("the list of roots", plan.roots, vocab_size)
