"""Sessions of every kind for one draft engine of tiny models, and what each proposes alone."""

from contextlib import asynccontextmanager

import pytest
import torch

from slipstream.core.inline import finished
from slipstream.core.policy.profile import Profile
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy, Verification
from slipstream.drafting.batcher import BatchedDraft
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.engine.thread import EngineThread
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.scorer import KvView
from slipstream.train.decision import DecisionNetwork
from support.models import tiny

PROFILE = Profile(threshold_sampled=0.35, step_cost=0.1)
SHAPES = [Shape.CHAIN, Shape.CAPE, Shape.DYNAMIC, Shape.PRODUCT]
STOPS = [StopPolicy.FIXED, StopPolicy.DECISION, StopPolicy.SVIP]
TEMPERATURES = [0.0, 1.0, 0.7]


class Keys:
    """Random keys and values of a target, other ones for every session: all but those of the last
    two tokens."""

    def __init__(self, count=None):
        self._count = count

    def view(self, session_id, layers):
        number = int(session_id[1:])
        noise = torch.Generator().manual_seed(number)
        count = self._count or 4 + number
        shape = (4, count + 9, 16)
        return KvView(count, {at: torch.randn(shape, generator=noise) for at in layers})


def both_scorers():
    """Models to draft with, by kind."""
    return {"glide": tiny.glide(), "vanilla": CausalScorer(tiny.causal(numerics="fast"))}


def engine(scorers, kind="glide", *, keys=None, num_pages=64):
    """A draft engine of its own over shared weights."""
    scorer = scorers[kind]
    feed = TargetKv(keys or Keys(), (0, 2)) if kind == "glide" else None
    torch.manual_seed(0)
    decision = DecisionNetwork(scorer.hidden_size).model().score
    return LocalDraft(scorer, feed, decision=decision, profile=PROFILE, pool=scorer.pool(num_pages))


@asynccontextmanager
async def batched(local):
    """The engine on a thread of its own."""
    thread = EngineThread("draft")
    try:
        yield BatchedDraft(local, thread)
    finally:
        thread.close()


def asked(number, verification=Verification.EXACT):
    """The `number`-th sequence, and a plan: of all shapes, policies and temperatures."""
    tokens = tuple(tiny.tokens(6 + number, seed=number))
    sampling = SamplingParams(temperature=TEMPERATURES[number % 3], top_p=0.9, seed=number)
    session = Session(
        f"s{number}",
        len(tokens),
        40,
        sampling,
        verification=verification,
        num_roots=3 if verification is Verification.TARGET_INIT else 1,
    )
    return TokenSequence(session, tokens), plan(number, verification)


def plan(number, verification):
    """A plan that goes with a way to verify."""
    stop = STOPS[number % 3]
    if verification is Verification.TARGET_INIT:
        return Plan(4, 12, Shape.FORK, stop, roots=(3, 4, 6))
    shape = SHAPES[number % 4]
    if verification is not Verification.EXACT:
        shape = SHAPES[3 * (number % 2)]
    return Plan(4, 14, shape, stop, widths=(2, 2, 1) if shape is Shape.PRODUCT else ())


def alone(scorers, kind, *call):
    """Return the proposal of an engine without other sessions."""
    return finished(engine(scorers, kind).propose(*call))


def same(ours, theirs):
    """Assert the same tree, and numbers as close as float32 has them."""
    assert (ours.tree, ours.stopped_by) == (theirs.tree, theirs.stopped_by)
    assert ours.staleness == theirs.staleness
    for one, other in zip(ours.stats, theirs.stats, strict=True):
        assert one.top_prob == pytest.approx(other.top_prob, abs=1e-4)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-3)
        assert (one.score is None) == (other.score is None)
    for one, other in zip(ours.distributions, theirs.distributions, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one.probs == pytest.approx(other.probs, abs=1e-4)
