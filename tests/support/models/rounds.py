"""Runs requests through the real loop over engines in this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.draft.ngram_draft import NgramDraft
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, Profile, resolve
from slipstream.core.round import Round, RoundObserver
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session, Verdict

DEFAULTS = Profile()


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def num_drafted(self) -> int:
        return sum(len(at.proposal.tree) for at in self.rounds)

    @property
    def num_drafted_by_the_draft(self) -> int:
        return self.num_drafted - sum(len(at.proposal.sources) for at in self.rounds)

    @property
    def num_accepted(self) -> int:
        return sum(at.verdict.num_accepted for at in self.rounds)


def speculate(  # noqa: PLR0913 - a request's parts
    target,
    draft,
    kind: str,
    prompt: Sequence[int],
    *,
    sampling: SamplingParams,
    options: SpeculationOptions,
    max_tokens: int,
    stop_token_ids: frozenset[int] = frozenset(),
    has_decision_model: bool = False,
    profile: Profile = DEFAULTS,
    name: str = "s",
    observer: RoundObserver | None = None,
) -> Output:
    facts = DraftFacts(kind, profile, has_decision_model)
    settings = resolve(options, facts, temperature=sampling.temperature)
    more = (settings.verification, stop_token_ids, settings.num_roots)
    session = Session(name, len(prompt), max_tokens, sampling, *more)
    sequence = TokenSequence(session, prompt)
    planner, ports = Planner(settings), (draft, target)
    decoding = decode(*ports, planner, sequence, clock=lambda: 0.0, observer=observer)
    rounds = tuple(iterated(decoding))
    for engine in (draft, target):
        finished(engine.release(name))
    return Output(tuple(t for at in rounds for t in at.verdict.tokens), rounds)


def plain(target, prompt, *, sampling, max_tokens, stop_token_ids=frozenset()) -> Output:
    asked = {"sampling": sampling, "max_tokens": max_tokens, "stop_token_ids": stop_token_ids}
    off = SpeculationOptions(mode=Mode.OFF)
    return speculate(target, NgramDraft(), "ngram", prompt, options=off, **asked)


def round_of(proposal, verdict, waited_s=None) -> Round:
    """A round that came to an end, as its planner and its statistics see it."""
    proposing = None if waited_s is None else (0.0, waited_s)
    return Round(1, 0.0, proposal=proposal, verdict=verdict, proposing=proposing)


def outcome(drafted, depth, accepted, sources=(), **fields) -> Round:
    """A round of so many nodes, the longest path first; the last ones are of these sources."""
    parents = (*range(-1, depth - 1), *(-1,) * (drafted - depth))
    tree = TokenTree(tuple(range(drafted)), parents)
    proposal = Proposal(tree, sources=sources, **fields)
    return round_of(proposal, Verdict((*range(accepted), 99), accepted))


def next_token(target, session, told) -> int:
    """The token behind these on an engine that has never heard of the session."""
    finished(target.release(session.session_id))
    verdict = finished(target.verify(TokenSequence(session, told), Proposal()))
    finished(target.release(session.session_id))
    return verdict.tokens[0]
