"""Every token of an output says where it came from, and what the draft's are adds up."""

from collections import Counter
from dataclasses import replace

import pytest

from slipstream.core.draft.cape import Chain, cape_tree
from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import TokenLogprob
from slipstream.core.request.origins import (
    RoundNode,
    RoundToken,
    TokenOrigin,
    origins_of,
    round_tree,
)
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.request import Ask
from slipstream.core.request.results import Chunk, collected
from slipstream.core.round import Round
from slipstream.core.tree import ROOT, CopySource, TokenTree
from slipstream.core.types import Plan, Proposal, SamplingParams, Verdict
from support.models.rounds import round_of
from support.models.tiny_runs import WAYS, run_of

DRAFT, RUNNER_UP, LOOKUP, STORE, TARGET = TokenOrigin
CAPE = Proposal(cape_tree(Chain([1, 2, 3], [[11, 12], [21], [31]], [0.5, 0.9, 0.9]), 31))


@pytest.mark.parametrize(
    ("tokens", "origins"),
    [
        ((1, 2), [DRAFT, DRAFT]),  # cut short
        ((9,), [TARGET]),
        ((1, 9), [DRAFT, TARGET]),
        ((1, 2, 3, 9), [DRAFT, DRAFT, DRAFT, TARGET]),
        ((12, 9), [RUNNER_UP, TARGET]),
        ((1, 21, 9), [DRAFT, RUNNER_UP, TARGET]),
    ],
)
def test_a_chain_is_the_drafts_and_its_leaves_are_runner_ups(tokens, origins):
    verdict = Verdict(tokens, sum(origin is not TARGET for origin in origins))
    assert list(origins_of(round_of(CAPE, verdict))) == origins


@pytest.mark.parametrize(
    ("source", "origin"),
    [(CopySource.LOOKUP, LOOKUP), (CopySource.GRAMMAR, LOOKUP), (CopySource.STORE, STORE)],
)
def test_what_was_copied_is_its_sources_and_what_the_draft_had_too_is_the_drafts(source, origin):
    proposal = Proposal(TokenTree((1, 2, 7, 8), (ROOT, 0, 1, 2)), sources=(source,) * 2)
    origins = (DRAFT, DRAFT, origin, origin, TARGET)
    assert origins_of(round_of(proposal, Verdict((1, 2, 7, 8, 9), 4))) == origins
    alone = Proposal(TokenTree.chain((1, 2)), sources=(source,) * 2)
    assert origins_of(round_of(alone, Verdict((1, 2, 9), 2))) == (origin, origin, TARGET)


def test_roots_that_the_target_drew_are_its_own_and_the_chains_below_the_drafts():
    tree = TokenTree((5, 6, 1, 2), (ROOT, ROOT, 0, 1))
    rooted = round_of(Proposal(tree), Verdict((6, 2), 2, roots=(3, 4)))
    rooted.plan = Plan(2, 4, roots=(5, 6))
    assert origins_of(rooted) == (TARGET, DRAFT)


@pytest.mark.parametrize("name", ["origins", "logprobs"])
def test_what_is_known_of_other_tokens_is_refused(name):
    with pytest.raises(InvalidRequest, match="2 tokens have 1 "):
        Chunk("ab", (1, 2), **{name: (TARGET if name == "origins" else TokenLogprob(-1.0),)})


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("way", WAYS)
def test_origins_and_rounds_add_up_to_the_answer_and_its_statistics(models, way, temperature):
    sampling = SamplingParams(temperature=temperature, seed=3)
    ask = Ask(sampling, 40, speculation=WAYS[way], with_rounds=True, with_origins=True)
    chunks = run_of(models, ask)
    result = collected(chunks)
    said = Counter(result.origins)
    speculation = result.stats.speculation
    assert len(result.origins) == len(result.token_ids) == 40
    assert [len(chunk.origins) for chunk in chunks] == [len(chunk.token_ids) for chunk in chunks]
    copied = sum(said[origin] for origin in (LOOKUP, STORE))
    assert said[DRAFT] + said[RUNNER_UP] + copied == speculation.num_accepted_draft_tokens
    assert said[LOOKUP] == speculation.num_accepted_lookup_tokens
    assert result.origins[0] is TARGET
    assert None not in said
    rounds = [tree for chunk in chunks for tree in chunk.rounds]
    assert [token.origin for tree in rounds for token in tree.tokens] == list(result.origins)
    drafted = [node for tree in rounds for node in tree.nodes if node.origin is not TARGET]
    assert len(drafted) == speculation.num_draft_tokens
    start = 0
    for tree in rounds:
        path = [node.token_id for node in tree.nodes if node.is_kept]
        assert tuple(path) == result.token_ids[start : start + len(path)]
        start += len(tree.tokens)


def test_the_drafts_the_texts_and_the_targets_are_all_seen(models):
    ask = Ask(max_tokens=60, speculation=WAYS["lookup"], with_origins=True)
    assert set(collected(run_of(models, ask)).origins) == set(TokenOrigin) - {STORE}


def test_a_stop_string_or_the_limit_cuts_what_is_known_of_tokens_with_them(models):
    told = {"with_origins": True, "num_logprobs": 1}
    ask = Ask(max_tokens=40, speculation=WAYS["cape"], **told)
    whole = collected(run_of(models, ask))
    for start in range(2, len(whole.text) - 2, 3):
        cut = collected(run_of(models, replace(ask, stop=(whole.text[start : start + 2],))))
        count = len(cut.token_ids)
        assert cut.token_ids == whole.token_ids[:count]
        assert cut.origins == whole.origins[:count]
        assert cut.logprobs == whole.logprobs[:count]
        assert count <= 40
    for most in range(1, 9):
        assert (
            collected(run_of(models, replace(ask, max_tokens=most))).logprobs
            == (whole.logprobs[:most])
        )


@pytest.mark.parametrize("num_past", [0, 7, 20])
@pytest.mark.parametrize("num_received", [0, 5, 20])
def test_of_a_request_that_goes_on_the_old_tokens_say_nothing(models, num_past, num_received):
    told = {"with_origins": True, "num_logprobs": 2}
    ask = Ask(max_tokens=30, request_id="r", speculation=WAYS["cape"], **told)
    whole = collected(run_of(models, ask))
    chunks = run_of(models, ask, past=whole.token_ids[:num_past], num_received=num_received)
    assert [token for chunk in chunks for token in chunk.token_ids] == list(
        whole.token_ids[num_received:]
    )
    logprobs = [None] * num_past + list(whole.logprobs[num_past:])
    assert [item for chunk in chunks for item in chunk.logprobs] == logprobs[num_received:]
    origins = [origin for chunk in chunks for origin in chunk.origins]
    num_old = max(num_past - num_received, 0)
    assert origins[:num_old] == [None] * num_old
    assert None not in origins[num_old:]


class Words:
    """Words with spaces before them, of which a text drops the first."""

    def decode(self, ids):
        return "".join(f" {token}" for token in ids)[1:]


@pytest.mark.parametrize("own", [{}, {"raw": True}, {"continue_final": True}])
def test_an_answer_goes_on_within_a_raw_text_and_a_message_that_is_continued(models, own):
    ask = Ask(max_tokens=3, form=PromptForm(**own))
    assert collected(run_of(models, ask, text=Words())).text.startswith(" ") is bool(own)


class Letters:
    """Texts of tokens: letters, and none for token 9."""

    def decode(self, ids):
        return "".join("" if token == 9 else chr(96 + token) for token in ids)

    def token_bytes(self, token):
        return b"<end>" if token == 9 else bytes([96 + token])


def test_a_round_is_its_tree_with_what_was_kept():
    proposal = Proposal(TokenTree((1, 2, 3, 4), (ROOT, ROOT, 1, 2)), sources=(CopySource.STORE,))
    at = Round(3, 0.0, proposal=proposal, verdict=Verdict((2, 3, 9), 2))
    at.proposing, at.verifying = (0.0, 0.25), (0.25, 1.0)
    shown = round_tree(at, Letters())
    assert shown.nodes == (
        RoundNode(1, b"a", ROOT, DRAFT, False),
        RoundNode(2, b"b", ROOT, RUNNER_UP, True),
        RoundNode(3, b"c", 1, RUNNER_UP, True),
        RoundNode(4, b"d", 2, STORE, False),
    )
    assert shown.tokens == (
        RoundToken(b"b", RUNNER_UP),
        RoundToken(b"c", RUNNER_UP),
        RoundToken(b"", TARGET),
    )
    assert (shown.draft_s, shown.verify_s) == (0.25, 0.75)


@pytest.mark.parametrize(("stop", "num_ahead"), [((), 1), (("zzz",), 0)])
def test_a_round_begins_before_the_last_one_s_text_unless_a_stop_string_may_be_in_it(
    models, stop, num_ahead
):
    def ahead(rounds):
        used.append(rounds)
        return rounds

    used, ask = [], Ask(max_tokens=8, stop=stop)
    chunks = run_of(models, ask, ahead=ahead)
    assert len(used) == num_ahead
    assert collected(chunks).token_ids == collected(run_of(models, ask)).token_ids
