"""Rows that draw on their own draw the tokens of `core.verify.verify`."""

import math
import random
from dataclasses import replace

import pytest
import torch

from slipstream.core.errors import ModelError
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal, SamplingParams, Session, Verification
from slipstream.core.verify.draws import NO_TOKEN, draw_keys, fits_device, walk_drawn
from slipstream.core.verify.verify import verify
from slipstream.models.cuda.draws import draw
from slipstream.models.cuda.graphs import Replay
from support.models import tiny

VOCAB = 300
TEMPERATURES = [0.0, 0.05, 0.7, 1.0, 1.9]


def planted(tree, rng, logits):
    """Logits that like what the tree proposes, so that walks go somewhere; ties included."""
    logits = (logits * 2).round() / 2
    for node in range(-1, len(tree)):
        for child in tree.children(node):
            if rng.random() < 0.7:
                logits[node + 1, tree.tokens[child]] += 8
    return logits


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_walk_over_tokens_drawn_in_a_graph_is_that_of_verify(temperature):
    rng, lengths, replay = random.Random(7), set(), Replay(torch.device("cuda"))
    for round_id in range(25):
        sampling = SamplingParams(temperature=temperature, seed=rng.randrange(2**64))
        prefix = [rng.randrange(VOCAB) for _ in range(1 + rng.randrange(40))]
        session = Session("s", len(prefix), 100, sampling)
        tree = tiny.tree(rng, rng.randrange(12), VOCAB)
        noise = torch.Generator().manual_seed(round_id)
        logits = planted(tree, rng, torch.randn(len(tree) + 1, VOCAB, generator=noise))
        stats = (NodeStats(0.5, 0.5, 1.0),) * len(tree)
        expected = verify(session, prefix, Proposal(tree, stats), lambda at: logits[at + 1].numpy())  # noqa: B023
        depths = (0, *tree.depths())
        keys = [draw_keys(sampling, len(prefix) + depth) for depth in depths]
        heat = torch.full((len(keys),), temperature)
        given = logits, heat, torch.tensor(keys, dtype=torch.int32)
        (tokens,) = replay.run(len(keys), lambda *given: (draw(*given),), given)
        assert walk_drawn(tree, tokens.tolist()) == expected
        lengths.add(len(expected.nodes))
    assert len(lengths) > 2


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


FITTING = ({}, {"temperature": 0.8}, {"top_k": 5, "top_p": 0.5})  # greedy: nothing is truncated
OTHER = [{"temperature": 0.8, **at} for at in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1})]
OTHER += [{f"{kind}_penalty": at} for kind, at in (("repetition", 1.1), ("presence", 0.1))]
OTHER += [{"frequency_penalty": 0.1}, {"logit_bias": ((1, 1.0),)}]


@pytest.mark.parametrize("changes", [*FITTING, *OTHER])
def test_only_distributions_of_logits_and_temperature_fit_and_only_exact_verification(changes):
    session = Session("s", 1, 1, SamplingParams(**changes))
    for mode in Verification:
        is_exact = mode is Verification.EXACT
        fits = fits_device(replace(session, verification=mode))
        assert fits is (changes in FITTING and is_exact)
    assert not fits_device(replace(session, num_logprobs=0))
    assert not fits_device(replace(session, grammar=Grammar(GrammarKind.REGEX, "a")))
