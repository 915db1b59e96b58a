"""Requests replayed from records: the real loop, planner and lookup between engines that remember.

Slower than `simulate`, and able to say what copies are worth. Knows no model and no clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slipstream.bench.calibrate.simulate import Outcome, drafted, tree_of
from slipstream.bench.calibrate.traces import Guess, Trace
from slipstream.core.inline import iterated
from slipstream.core.lookup_draft import LookupDraft
from slipstream.core.loop import Round, decode
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.planner import Planner, resolve
from slipstream.core.profile import Profile
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import (
    Delta,
    FinishReason,
    NodeStats,
    Plan,
    Proposal,
    SamplingParams,
    Session,
    Verdict,
)

_DRAFTER = "glide"
"""A kind that takes every setting; which one it is makes no difference here."""


def replayed(profile: Profile, trace: Trace) -> Iterator[Outcome]:
    """The rounds of one reply after the first, copies and all."""
    options = SpeculationOptions(mode=Mode.FORCED)
    settings = resolve(
        options, profile, drafter=_DRAFTER, has_decision_model=True, temperature=trace.temperature
    )
    sampling = SamplingParams(temperature=trace.temperature, seed=trace.seed)
    session = Session(
        "replay",
        len(trace.prompt),
        trace.max_tokens,
        sampling,
        stop_token_ids=trace.stop_token_ids,
    )
    draft, target = LookupDraft(_Draft(profile, trace)), _Target(trace)
    rounds = iterated(decode(draft, target, Planner(settings), session, trace.prompt))
    next(rounds)  # the prompt's own
    return map(_outcome, rounds)


def _outcome(at: Round) -> Outcome:
    depth = max(at.proposal.drafted.depths(), default=0)
    return Outcome(len(at.verdict.tokens), depth, len(at.proposal.tree))


class _Draft:
    """Proposes what was recorded."""

    def __init__(self, profile: Profile, trace: Trace) -> None:
        self._profile = profile
        self._trace = trace

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        at = delta.end - len(self._trace.prompt)
        chain = drafted(self._profile, self._trace, at)[: min(plan.max_depth, plan.max_nodes)]
        shaped = replace(self._profile, shape=plan.shape)
        tree = tree_of(shaped, chain, self._trace.temperature)
        return Proposal(tree, stats=_stats(tree, chain))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`; nothing is held."""


def _stats(tree: TokenTree, chain: Sequence[Guess]) -> tuple[NodeStats, ...]:
    """Return what the draft said of each node, which stands at its depth in the chain."""
    guesses = [chain[depth - 1] for depth in tree.depths()]
    return tuple(
        NodeStats(at.top_prob, at.probs[at.tokens.index(token)], at.entropy, at.score)
        for token, at in zip(tree.tokens, guesses, strict=True)
    )


class _Target:
    """Says what it said."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`."""
        at = delta.end - len(self._trace.prompt)
        rest, tree, node, accepted = self._trace.tokens[at:], proposal.tree, ROOT, 0
        for token in rest:
            below = [child for child in tree.children(node) if tree.tokens[child] == token]
            if not below:
                break
            node, accepted = below[0], accepted + 1
        tokens = rest[: accepted + 1]
        is_over = at + len(tokens) == len(self._trace.tokens)
        reason = FinishReason.STOP if is_over else None
        return Verdict(tokens, min(accepted, len(tokens)), reason)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`; nothing is held."""
