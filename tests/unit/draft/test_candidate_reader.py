"""Slots of a draft whose scores are infinite, or no numbers: read as they are, or an error."""

import math

import numpy as np
import pytest

from slipstream.core.errors import ModelError
from slipstream.core.inline import finished
from slipstream.core.policy.stop import StopSignal, make_stop
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy, Verification
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.drafting.reader import CandidateReader, CandidateRows, read_candidates, read_each
from slipstream.models.scorer import Scores
from support.models import tiny, tiny_glide

INF, NAN = math.inf, math.nan
SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0.8, seed=3)]


def reading(count=1, *, sampling=SAMPLINGS[0], mode=Verification.EXACT, score=None):
    session = Session("s", 1, 9, sampling, verification=mode)
    return CandidateRows(CandidateReader(session, None, score), [1], [0], count)


def scores_of(*rows):
    return Scores(np.float32(rows), np.zeros((len(rows), 4), np.float32))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_token_that_a_draft_rules_out_leaves_the_entropy_a_number(sampling, count):
    open_row, masked = [1.0, 0.9, 0.8, 0.7], [1.0, 0.9, 0.8, 0.7, -INF]
    [known] = read_candidates(scores_of(open_row), reading(count, sampling=sampling))
    for scores in (scores_of(masked), scores_of(masked, masked)):
        for [slot] in read_each(scores, [reading(count, sampling=sampling)] * len(scores.logits)):
            assert slot.entropy == pytest.approx(known.entropy)
            assert make_stop(StopPolicy.SVIP).should_stop(
                StopSignal(1, slot.top_prob, slot.entropy)
            )


def spoilt(size, values):
    row = [math.sin(at) for at in range(size)]
    for at, value in values.items():
        row[at] = value
    return row


@pytest.mark.parametrize("mode", [Verification.EXACT, Verification.MCSD])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "row",
    [
        *([NAN] * 8, [-INF] * 8, [NAN] * 1000, spoilt(8, {5: NAN}), spoilt(8, {5: INF})),
        *(spoilt(1000, {5: NAN}), spoilt(1000, {999: NAN})),
        spoilt(1000, {at: NAN for at in range(0, 1000, 7)}),
    ],
    ids=["nan", "-inf", "many nan", "a nan", "inf", "a nan of many", "the last nan", "some nan"],
)
def test_scores_without_a_distribution_are_an_error_of_the_model(row, count, sampling, mode):
    with pytest.raises(ModelError):
        read_candidates(scores_of(row), reading(count, sampling=sampling, mode=mode))


def test_a_decision_that_is_no_number_is_none():
    def score(hidden, stats):
        return np.full((len(hidden), 2), NAN)

    [slot] = read_candidates(scores_of(spoilt(9, {})), reading(2, score=score))
    assert slot.score is None


class Keys:
    """A target's keys and values of the leading tokens."""

    def __init__(self, target, tokens, count):
        self._view = tiny_glide.view(target, tokens, count)

    def view(self, session_id, layers):
        return self._view


@pytest.mark.parametrize(("num_keys", "nearest"), [(12, 0), (11, 1), (9, 3)])
def test_the_lag_of_a_slot_below_a_root_counts_from_the_newest_key_of_the_target(num_keys, nearest):
    target, tokens = tiny_glide.llama(), tiny.tokens(12)
    config = tiny_glide.config(target)
    lags = []

    def score(hidden, stats):
        lags.append(stats[:, -1].tolist())
        return np.ones((len(hidden), 2))

    feed = TargetKv(Keys(target, tokens, num_keys), tuple(config.target_layers))
    draft = LocalDraft(tiny_glide.scorer(target, tiny_glide.draft(config)), feed, decision=score)
    session = Session("s", 12, 20, verification=Verification.TARGET_INIT, num_roots=2)
    plan = Plan(4, 12, shape=Shape.FORK, stop=StopPolicy.DECISION, roots=(3, 4))
    proposal = finished(draft.propose(TokenSequence(session, tuple(tokens)), plan))
    # A row of the training reads the keys before itself: a root's row, those of all tokens.
    assert lags == [[nearest + at] * 2 for at in range(3)]
    assert proposal.staleness == max(11 - num_keys, 0)
