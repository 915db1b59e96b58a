"""Runs requests through the real loop over engines in this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.inline import iterated
from slipstream.core.loop import Round, decode
from slipstream.core.ngram_draft import NgramDraft
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.planner import Planner
from slipstream.core.profile import Profile
from slipstream.core.settings import resolve
from slipstream.core.types import SamplingParams, Session

DEFAULTS = Profile()


@dataclass(frozen=True)
class Output:
    """A finished request."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def num_drafted(self) -> int:
        return sum(len(at.proposal.tree) for at in self.rounds)

    @property
    def num_drafted_by_the_draft(self) -> int:
        return self.num_drafted - sum(at.proposal.num_copied for at in self.rounds)

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
) -> Output:
    """One request, from an empty session to its release."""
    settings = resolve(
        options,
        profile,
        drafter=kind,
        has_decision_model=has_decision_model,
        temperature=sampling.temperature,
    )
    session = Session(
        name,
        len(prompt),
        max_tokens,
        sampling,
        settings.verification,
        stop_token_ids,
        settings.num_roots,
    )
    rounds = tuple(iterated(decode(draft, target, Planner(settings), session, prompt)))
    for engine in (draft, target):
        for _ in iterated(_released(engine, name)):
            pass
    return Output(tuple(t for at in rounds for t in at.verdict.tokens), rounds)


async def _released(engine, name):
    await engine.release(name)
    yield


def plain(target, prompt, *, sampling, max_tokens, stop_token_ids=frozenset()) -> Output:
    """The same request without speculation."""
    return speculate(
        target,
        NgramDraft(),
        "ngram",
        prompt,
        sampling=sampling,
        options=SpeculationOptions(mode=Mode.OFF),
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
    )
