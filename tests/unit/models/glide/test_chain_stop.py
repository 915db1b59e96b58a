"""A device's decision to stop is that of the policies in `core.policy.stop`."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.policy.stop import (
    Calibration,
    CostStop,
    DecisionStop,
    FixedStop,
    StopSignal,
    SvipStop,
)
from slipstream.models.decision import slot_stats
from slipstream.models.glide.chain_stop import (
    DecisionNetwork,
    Rules,
    Signals,
    device_stats,
    network_of,
    rule_of,
    should_stop,
)

chance = st.floats(0, 1)
limits = st.integers(1, 6).map(FixedStop)
svips = st.builds(SvipStop, st.floats(0.01, 2), limits)
stops = st.one_of(
    limits,
    svips,
    st.builds(DecisionStop, chance, svips),
    st.builds(CostStop, st.floats(0.01, 0.9), st.just(Calibration((0.1, 0.4, 0.9))), limits),
)
numbers = st.tuples(
    st.one_of(st.just(math.nan), st.floats(-1e-6, 12)),
    st.one_of(st.none(), chance),
    chance,
    st.one_of(st.just(math.nan), chance),
)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def rules_of(policies):
    rows = [rule_of(stop) for stop in policies]
    return Rules(
        torch.tensor([row.policy for row in rows]),
        torch.tensor([row.max_depth for row in rows]),
        doubles([row.threshold for row in rows]),
        doubles([row.fallback for row in rows]),
        torch.zeros(len(rows), dtype=torch.float64),
    )


@settings(deadline=None)
@given(st.lists(st.tuples(stops, numbers), min_size=1, max_size=9), st.integers(1, 7))
def test_chains_stop_where_the_policies_say(cases, depth):
    calibration = Calibration((0.1, 0.4, 0.9))
    columns, expected = [], []
    for stop, (entropy, score, top_prob, path_prob) in cases:
        signal = StopSignal(depth, top_prob, entropy, score, path_prob)
        kept = calibration.probability(top_prob) if score is None else score
        columns.append((entropy, math.nan if score is None else score, kept, path_prob))
        expected.append(stop.should_stop(signal))
    signals = Signals(*doubles(columns).unbind(1))
    rules = rules_of([stop for stop, _ in cases])
    assert should_stop(rules, signals, depth=depth).tolist() == expected


def test_a_device_scores_as_the_decision_model_does_also_states_in_bfloat16():
    torch.manual_seed(0)
    network = DecisionNetwork(6, 4)
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.4)
    rows = [(math.log(0.9), math.log(0.05)), (math.log(0.3), math.log(0.2)), (0.0, -math.inf)]
    entropies, lags, hidden = (0.4, 3.0, 0.0), (0, 7, 2), torch.randn(3, 6).bfloat16()
    stats = device_stats(doubles(rows), doubles(entropies), torch.tensor(lags))
    expected = np.float32(list(map(slot_stats, rows, entropies, lags)))
    np.testing.assert_allclose(stats, expected, rtol=1e-6)
    chances = network_of(network.model(), torch.device("cpu"))(hidden, stats).sigmoid()
    assert chances.dtype == torch.float32
    theirs = network.model().score(hidden.float().numpy(), expected)
    np.testing.assert_allclose(chances, theirs, rtol=1e-5)
