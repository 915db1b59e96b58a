"""Calibration: simulated rounds are those of real runs, and what is fitted is what was seen."""

from dataclasses import replace

import pytest
import torch

from slipstream.bench.calibrate.simulate import (
    RoundCosts,
    RoundOutcome,
    Simulated,
    Stakes,
    replayed,
    rounds_of,
    simulate,
)
from slipstream.bench.calibrate.sweep import Evidence, finalists, leading, sweep
from slipstream.bench.calibrate.traces import (
    DraftTrace,
    TracePosition,
    TraceRecorder,
    fit_calibration,
    monotone,
)
from slipstream.core.draft.ngram_draft import LookupDraft
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.profile import Profile
from slipstream.core.row_costs import RowCosts
from slipstream.core.types import SamplingParams, Session, Shape, StopPolicy
from slipstream.drafting.build import DraftModel
from slipstream.drafting.profile_file import ModelPair
from slipstream.models.target.causal import CausalModel
from slipstream.models.target.causal_scorer import CausalScorer
from support.models import tiny
from support.models.rounds import speculate

DEPTH, MAX_TOKENS, PROMPTS = 5, 18, 2
COSTS = RoundCosts(10.0, 10.0, RowCosts(((1, 1.0), (16, 1.1), (32, 1.4))), 1.0, 0.9, 0.5)
SESSION = Session("trace", 1, 16)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=3)
PROFILES = {
    "fixed chain": Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, max_depth=4),
    "deepest chain": Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, max_depth=DEPTH),
    "svip with leaves": Profile(threshold=0.5, threshold_sampled=0.4, max_depth=DEPTH),
    "few nodes": Profile(stop=StopPolicy.FIXED, max_depth=5, max_nodes=9),
    "cost": Profile(
        stop=StopPolicy.COST,
        threshold=0.3,
        threshold_sampled=0.2,
        max_depth=DEPTH,
        max_nodes=15,
        cape_table=(3, 3, 2, 2, 1, 1, 1, 0, 0, 0),
    ),
}


@pytest.fixture(scope="module")
def pair():
    """A target, and a draft that is the same model with noise on its weights: often right."""
    target = tiny.local_target(tiny.causal(), free_rows=32)
    blurred = tiny.hf_model()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in blurred.parameters():
            value.add_(0.025 * torch.randn(value.shape, generator=noise))
    scorer = CausalScorer(CausalModel(blurred, numerics="fast"))
    return target, DraftModel("vanilla", scorer, ModelPair("tiny", "vanilla:tiny"), target)


@pytest.fixture(scope="module")
def traces(pair):
    """Greedy and sampled traces of some prompts."""
    target, model = pair
    recorder = TraceRecorder(target, model, depth=DEPTH)
    return {
        sampling: [record(recorder, prompt(number), sampling) for number in range(PROMPTS)]
        for sampling in (GREEDY, SAMPLED)
    }


@pytest.fixture(scope="module")
def repeating(pair):
    """Traces behind a prompt that repeats itself, so that there is something to copy."""
    target, model = pair
    recorder = TraceRecorder(target, model, depth=DEPTH)
    said = (*prompt(0), *prompt(0)[:8]) * 2
    return [record(recorder, said, sampling) for sampling in (GREEDY, SAMPLED)]


def record(recorder, prompt, sampling):
    ends = frozenset({7})
    session = Session("trace", len(prompt), MAX_TOKENS, sampling, stop_token_ids=ends)
    return recorder.record(session, prompt)


def prompt(number):
    return tuple(tiny.tokens(12, seed=number))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", PROFILES)
def test_simulated_rounds_are_those_of_a_real_run(pair, traces, name, sampling):
    target, model = pair
    profile = PROFILES[name]
    for trace in traces[sampling]:
        real = run(target, model.draft(profile), profile, trace)
        assert real.tokens == trace.tokens
        assert list(rounds_of(profile, trace)) == outcomes(real)
        assert real.num_accepted > 0


class Priced:
    """A draft whose plans have prices, as those of mode `auto`."""

    def __init__(self, draft, stakes):
        self._draft, self._stakes = draft, stakes
        self.release = draft.release

    async def propose(self, sequence, plan):
        priced = replace(plan, row_prices=self._stakes.prices, worth=self._stakes.worth)
        return await self._draft.propose(sequence, priced)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", PROFILES)
def test_what_is_too_dear_is_left_out_of_simulated_as_of_real_rounds(pair, traces, name, sampling):
    target, model = pair
    profile = PROFILES[name]
    stakes, num_left_out = Stakes((0.02, 0.02, 0.1) + 28 * (0.3,), 0.35), 0
    for trace in traces[sampling]:
        real = run(target, Priced(model.draft(profile), stakes), profile, trace)
        found = list(rounds_of(profile, trace, stakes))
        assert [at.num_tokens for at in found] == [at.num_tokens for at in outcomes(real)]
        assert [at.num_nodes for at in found] == [at.num_nodes for at in outcomes(real)]
        num_left_out += sum(at.num_nodes for at in rounds_of(profile, trace)) - real.num_drafted
    assert num_left_out > 0


def run(target, draft, profile, trace):
    """The request of a trace through the real loop and engines."""
    return speculate(
        target,
        draft,
        "vanilla",
        trace.prompt,
        sampling=SAMPLED if trace.temperature else GREEDY,
        options=SpeculationOptions(mode=Mode.FORCED),
        max_tokens=MAX_TOKENS,
        stop_token_ids=trace.session.stop_token_ids,
        profile=profile,
    )


def outcomes(real):
    """Return the rounds of a run after the prompt's own."""
    return [
        RoundOutcome(
            len(at.verdict.tokens),
            max(at.proposal.drafted.depths(), default=0),
            len(at.proposal.tree),
        )
        for at in real.rounds[1:]
    ]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", PROFILES)
def test_replayed_rounds_are_the_simulated_ones_when_nothing_is_copied(traces, name, sampling):
    for trace in traces[sampling]:
        rounds = list(replayed(PROFILES[name], trace))
        assert rounds == list(rounds_of(PROFILES[name], trace))


@pytest.mark.parametrize("lookup", [1, 2])
def test_replayed_rounds_with_copies_are_those_of_a_real_run(pair, repeating, lookup):
    target, model = pair
    profile = replace(PROFILES["cost"], lookup=lookup)
    num_copied = 0
    for trace in repeating:
        real = run(target, LookupDraft(model.draft(profile)), profile, trace)
        assert list(replayed(profile, trace)) == outcomes(real)
        num_copied += sum(at.proposal.num_copied for at in real.rounds)
    assert num_copied > 0


def test_a_trace_has_as_many_chains_as_rounds_may_begin(traces):
    for trace in (*traces[GREEDY], *traces[SAMPLED]):
        assert len(trace.chains) == len(trace.tokens) - 1
        assert all(len(chain) <= DEPTH for chain in trace.chains)
    with pytest.raises(InvalidRequest, match="a reply of 3 tokens has 1 chains"):
        DraftTrace((1, 2, 3), ((),), SESSION)


def test_the_deepest_recording_is_refused_where_a_tree_has_no_room_for_it(pair):
    target, model = pair
    with pytest.raises(InvalidRequest, match="the depth is 15, but must be from 1 to 14"):
        TraceRecorder(target, model, depth=15)


def guess(token, *others, top_prob=0.5, entropy=1.0):
    tokens = (token, *others)
    return TracePosition(tokens, (top_prob, *(0.1,) * len(others)), top_prob, entropy)


def coin(hits, misses, *, top_prob):
    """A reply of one slot each: the draft is right so often."""
    right = DraftTrace((1, 2), ((guess(2, top_prob=top_prob),),), SESSION)
    wrong = DraftTrace((1, 9), right.chains, SESSION)
    return [right] * hits + [wrong] * misses


def test_a_calibration_is_the_share_of_right_tokens_at_that_confidence():
    traces = coin(300, 100, top_prob=0.5) + coin(380, 20, top_prob=1.0)
    calibration = fit_calibration(traces)
    assert calibration.probability(0.5) == pytest.approx(0.75, abs=0.01)
    assert calibration.probability(1.0) == pytest.approx(0.95, abs=0.01)
    assert list(calibration.points) == sorted(calibration.points)


def test_without_any_token_a_calibration_takes_the_draft_at_its_word():
    assert fit_calibration([]).points == tuple(i / 10 for i in range(11))


def test_violations_of_order_are_pooled_by_weight():
    assert monotone([0.1, 0.5, 0.2, 0.9], [1, 1, 2, 1]) == pytest.approx([0.1, 0.3, 0.3, 0.9])
    assert monotone([0.3, 0.2, 0.1], [1, 1, 1]) == pytest.approx([0.2] * 3)


def test_a_round_costs_its_steps_its_rows_and_what_is_around_them():
    chain = (guess(2), guess(5), guess(6))
    trace = DraftTrace((1, 2, 3), (chain, (guess(3),)), SESSION)
    profile = Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, max_depth=3)
    simulated = simulate(profile, [trace], COSTS)
    assert (simulated.num_tokens, simulated.num_rounds) == (2, 1)
    assert simulated.ms == pytest.approx(0.9 + 2 * 0.5 + COSTS.forward_ms(4) + 1.0)
    assert COSTS.forward_ms(4) == pytest.approx(10.2)
    assert simulated.speed == pytest.approx(2 * 10 / simulated.ms)
    assert COSTS.stakes(3, 2.0).prices == pytest.approx(3 * [2 / 15 / 10])
    assert COSTS.stakes(3, 2.0).worth == pytest.approx(2 * 0.5 / 10 + 2 / 15 / 10)
    with pytest.raises(InvalidRequest, match="step_ms is 0, but must be above 0"):
        replace(COSTS, step_ms=0)


def test_leaves_go_up_to_the_step_behind_which_a_node_costs_more_than_it_brings(traces):
    profile = Profile(shape=Shape.CAPE, stop=StopPolicy.FIXED, max_depth=2, max_nodes=15)
    for prices, most in (((), 15), ((0.0,) * 5 + (9.0,) * 10, 5)):
        stakes = Stakes(prices)
        rounds = [at for trace in traces[GREEDY] for at in rounds_of(profile, trace, stakes)]
        assert max(at.num_nodes for at in rounds) == most


@pytest.fixture(scope="module")
def tried(traces):
    evidence = Evidence(tuple(traces[GREEDY]), tuple(traces[SAMPLED]), COSTS)
    return list(sweep(Profile(), evidence, depth=DEPTH))


def test_a_sweep_tries_every_policy_with_every_kind_of_leaves(tried):
    assert {item.profile.stop for item in tried} == {
        StopPolicy.FIXED,
        StopPolicy.SVIP,
        StopPolicy.COST,
    }
    assert {item.profile.shape for item in tried} == {Shape.CHAIN, Shape.CAPE}
    assert len({item.name for item in tried}) == len(tried)
    assert min(item.profile.max_depth for item in tried) == 1


def test_finalists_hold_the_best_of_every_policy_the_fastest_first(tried):
    best, by_policy = finalists(tried, 5), {}
    for item in tried:
        by_policy.setdefault(item.profile.stop, {})[item.name] = item
    firsts = [items[leading(items)] for items in by_policy.values()]
    firsts.sort(key=lambda item: -item.speed)
    assert best[: len(firsts)] == firsts
    assert len(best) == len({item.name for item in best}) == 5
    assert finalists(tried, 1) == firsts[:1]


def test_of_settings_that_are_about_as_fast_the_one_of_most_tokens_a_round_leads():
    kinds = {"fast": (50, 50.0), "alike": (40, 50.4), "slow": (20, 51.0)}
    found = {at: Simulated(100, rounds, ms, 1.0) for at, (rounds, ms) in kinds.items()}
    assert leading(found) == "alike"
    assert leading({at: found[at] for at in ("fast", "slow")}) == "fast"


def test_a_sweep_needs_replies_of_both_kinds(traces):
    with pytest.raises(InvalidRequest, match="greedy and sampled replies"):
        Evidence(tuple(traces[GREEDY]), (), COSTS)
