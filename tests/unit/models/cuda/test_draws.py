"""Rows that draw on their own draw the tokens of `core.verify.verify`."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.core.errors import ModelError
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal, SamplingParams, Session, Verification
from slipstream.core.verify.distribution import SamplingDistribution, distribution_of, masses
from slipstream.core.verify.draws import NO_TOKEN, draw_keys, draw_keys_of, fits_device, walk_drawn
from slipstream.core.verify.verify import verify
from slipstream.models.cuda.draws import DrawTables, draw_packed, pack_draws, scores_of
from slipstream.models.cuda.graphs import Replay
from slipstream.verifying.decision import draws_of
from support.cuda.operators import draw, truncate
from support.models import tiny

VOCAB = 300
NUM_COMMON = 30
"""Tokens of texts and trees, so that they come again."""
PLAIN = [{"temperature": heat} for heat in (0.0, 0.05, 0.7, 1.0, 1.9)]
TRUNCATED = [
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.9, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.5, "min_p": 0.02},
]
EDITED = [
    {"logit_bias": ((5, 2.5), (7, -100.0))},
    {"repetition_penalty": 1.3, "min_tokens": 2},
    {"temperature": 0.9, "presence_penalty": 0.7, "frequency_penalty": -0.4, "min_tokens": 9},
    {"temperature": 1.0, "repetition_penalty": 0.8, "top_p": 0.9, "logit_bias": ((3, 4.0),)},
]


class Form:
    """Outputs go on with any token, or with those of the remainders 0 to 3 of 7 by their sum."""

    def __init__(self, is_free):
        self._is_free = is_free

    def allowed(self, output):
        if self._is_free(output):
            return None
        return np.array([token for token in range(VOCAB - 9) if (token + sum(output)) % 7 < 4])


FORMS = [None, Form(lambda output: False), Form(lambda output: sum(output) % 2)]


def planted(tree, rng, logits):
    """Logits that like what the tree proposes, so that walks go somewhere; ties included."""
    logits = (logits * 2).round() / 2
    for node in range(-1, len(tree)):
        for child in tree.children(node):
            if rng.random() < 0.7:
                logits[node + 1, tree.tokens[child]] += 12
    return logits


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("params", PLAIN + TRUNCATED + EDITED)
def test_the_walk_over_tokens_drawn_in_a_graph_is_that_of_verify(params, form):
    rng, lengths, replay = random.Random(7), set(), Replay(torch.device("cuda"))
    tables = DrawTables(12, VOCAB, "cuda") if form or params not in PLAIN else None
    for round_id in range(25):
        sampling = SamplingParams(**params, seed=rng.randrange(2**64))
        prefix = [rng.randrange(NUM_COMMON) for _ in range(2 + rng.randrange(40))]
        ends = frozenset(rng.sample(range(VOCAB), 40))
        session = Session("s", len(prefix) - round_id % 2, 100, sampling, stop_token_ids=ends)
        tree = tiny.tree(rng, rng.randrange(12), NUM_COMMON)
        noise = torch.Generator().manual_seed(round_id)
        logits = planted(tree, rng, torch.randn(len(tree) + 1, VOCAB, generator=noise))
        stats = (NodeStats(0.5, 0.5, 1.0),) * len(tree)
        row = lambda node: logits[node + 1].numpy()  # noqa: B023, E731
        expected = verify(session, prefix, Proposal(tree, stats), row, constraint=form)
        draws = draws_of(session, prefix, tree, constraint=form)
        given = logits, torch.from_numpy(pack_draws(draws, len(draws), are_plain=tables is None))
        if tables:
            tables.send(draws)
        (tokens,) = replay.run(len(draws), lambda *given: (draw_packed(*given, tables),), given)
        assert walk_drawn(tree, tokens.tolist()) == expected
        lengths.add(len(expected.nodes))
    assert len(lengths) > 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("params", TRUNCATED + EDITED)
@pytest.mark.parametrize(("size", "scale"), [(20_000, 6), (20_000, 1), (VOCAB, 1), (VOCAB, 0)])
def test_the_scores_of_rows_are_those_of_the_distribution_in_every_bit(params, form, size, scale):
    rng, noise = random.Random(3), torch.Generator().manual_seed(7)
    prefix = [rng.randrange(NUM_COMMON) for _ in range(20)]
    session = Session("s", 19, 100, SamplingParams(**params), stop_token_ids=frozenset({3, 8}))
    tree = tiny.tree(rng, 9, NUM_COMMON)
    logits = (torch.randn(10, size, generator=noise) * scale).bfloat16()  # with ties
    draws, tables = draws_of(session, prefix, tree, constraint=form), DrawTables(10, size, "cpu")
    tables.send(draws)
    packed = torch.from_numpy(pack_draws(draws, 10, are_plain=False))
    found, distribution = scores_of(logits, packed, tables).numpy(), distribution_of(session, form)
    for node in range(-1, len(tree)):
        tokens = [*prefix, *(tree.tokens[step] for step in tree.path(node))]
        mask = draws[node + 1].mask
        if mask is None or len(mask):  # a walk may reach it
            expected = distribution.scores(logits[node + 1].float().numpy(), tokens)
            assert np.array_equal(found[node + 1], expected)


def test_masses_in_whole_units_decide_at_the_border_of_top_p():
    for step in range(1, 300):
        logits = np.float32([0, -step / 64])
        units = masses(logits)
        sampling = SamplingParams(temperature=1, top_p=float(units[0] / units.sum(dtype=float)))
        limits = torch.tensor([[sampling.top_p, -math.inf]], dtype=torch.float64)
        given = torch.ones(1), torch.ones(1, dtype=torch.int32) * 9, limits
        (found,) = truncate(torch.from_numpy(logits)[None], *given).numpy()
        assert np.array_equal(found, SamplingDistribution(sampling, 1).scores(logits, [1]))


@pytest.mark.parametrize("bad", [[-math.inf] * 9, [math.nan] * 9, [math.inf] + [0.0] * 8])
def test_a_row_without_a_distribution_has_no_token_and_is_an_error_of_walks_that_reach_it(bad):
    logits = torch.tensor([[0.0] * 9, bad])
    greedy = draw(logits, torch.zeros(2), torch.zeros(2, 2, dtype=torch.int32))
    assert greedy.tolist() == [0, NO_TOKEN]
    tokens = draw(logits, torch.ones(2), torch.zeros(2, 2, dtype=torch.int32)).tolist()
    assert tokens[1] == NO_TOKEN
    assert walk_drawn(TokenTree.chain([tokens[0] ^ 1]), tokens).token == tokens[0]
    with pytest.raises(ModelError, match="no distribution"):
        walk_drawn(TokenTree.chain([tokens[0]]), tokens)


@pytest.mark.parametrize("mode", Verification)
def test_only_exact_verification_without_log_probabilities_fits(mode):
    session = Session("s", 1, 1, SamplingParams(**EDITED[3]), mode)
    assert fits_device(session) is (mode is Verification.EXACT)
    assert not fits_device(replace(session, num_logprobs=0))


def test_keys_of_many_draws_are_those_of_each():
    samplings = [SamplingParams(temperature=1.0, seed=seed) for seed in (0, 1, 2**63, 2**64 - 1)]
    positions = np.array([[0, 1, 300], [7, 7, 8], [5, 4, 3], [2**20, 2, 9]])
    found = draw_keys_of(samplings, positions)
    each = zip(samplings, positions.tolist(), strict=True)
    assert found.transpose(1, 2, 0).tolist() == [
        [[*draw_keys(own, position)] for position in some] for own, some in each
    ]
