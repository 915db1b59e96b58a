"""Rounds that are shown: the tokens that they kept are the answer, which is the same without."""

from dataclasses import replace

import pytest

from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.request import Ask
from slipstream.core.request.results import collected
from slipstream.core.request.round_tree import RoundNode, RoundToken, round_tree
from slipstream.core.round import Round
from slipstream.core.tree import ROOT, CopySource, TokenTree
from slipstream.core.types import Proposal, SamplingParams, Verdict
from support.models.tiny_runs import WAYS, run_of

DRAFT, RUNNER_UP, TARGET = TokenOrigin.DRAFT, TokenOrigin.RUNNER_UP, TokenOrigin.TARGET


class Letters:
    """Texts of tokens: letters, and none for token 9."""

    def decode(self, ids):
        return "".join("" if token == 9 else chr(96 + token) for token in ids)

    def token_bytes(self, token):
        return b"<end>" if token == 9 else bytes([96 + token])


def test_a_round_is_its_tree_with_what_was_kept():
    tree = TokenTree((1, 2, 3, 4), (ROOT, ROOT, 1, 2))
    proposal = Proposal(tree, sources=(CopySource.STORE,))
    at = Round(3, 0.0, proposal=proposal, verdict=Verdict((2, 3, 9), 2))
    at.proposing, at.verifying = (0.0, 0.25), (0.25, 1.0)
    shown = round_tree(at, Letters())
    assert shown.nodes == (
        RoundNode(1, b"a", ROOT, DRAFT, False),
        RoundNode(2, b"b", ROOT, RUNNER_UP, True),
        RoundNode(3, b"c", 1, RUNNER_UP, True),
        RoundNode(4, b"d", 2, TokenOrigin.NGRAM_STORE, False),
    )
    assert shown.tokens == (
        RoundToken(b"b", RUNNER_UP),
        RoundToken(b"c", RUNNER_UP),
        RoundToken(b"", TARGET),
    )
    assert (shown.draft_s, shown.verify_s) == (0.25, 0.75)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("way", WAYS)
def test_rounds_add_up_to_the_answer_and_change_nothing_of_it(models, way, temperature):
    sampling = SamplingParams(temperature=temperature, seed=3)
    ask = Ask(sampling, 40, speculation=WAYS[way], with_rounds=True, with_origins=True)
    chunks = run_of(models, ask)
    rounds = [tree for chunk in chunks for tree in chunk.rounds]
    result = collected(chunks)
    assert [token.origin for tree in rounds for token in tree.tokens] == list(result.origins)
    drafted = [node for tree in rounds for node in tree.nodes if node.origin is not TARGET]
    assert len(drafted) == result.stats.speculation.num_draft_tokens
    start = 0
    for tree in rounds:
        path = [node.token_id for node in tree.nodes if node.is_kept]
        assert tuple(path) == result.token_ids[start : start + len(path)]
        start += len(tree.tokens)
    without = run_of(models, replace(ask, with_rounds=False))
    assert [chunk.token_ids for chunk in without] == [chunk.token_ids for chunk in chunks]
    assert not any(chunk.rounds for chunk in without)
