"""Log-probabilities are those of the model itself, however tokens were found."""

import asyncio
import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from slipstream.core.errors import InvalidRequest, ModelError, NotBuilt, UnsupportedCombination
from slipstream.core.inline import finished
from slipstream.core.logprobs import MAX_LOGPROBS, TokenLogprob, TopLogprob, with_texts
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import Ask, make_request
from slipstream.core.request.results import collected
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, SamplingParams, Session, Verification
from slipstream.core.verify.likelihood import token_logprob
from support.models import tiny
from support.models.batches import batched, guess, session_of
from support.models.in_memory import causal_model
from support.models.tiny_runs import FACTS, PROMPT, WAYS, Letters, run_of

LOSSLESS = [*((way, "vanilla") for way in WAYS if way != "roots"), ("chain", "ngram")]
CHANGED = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.3}
CHANGED |= {"presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": ((5, 2.0), (9, -3.0))}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.5, seed=3),
    "changed": SamplingParams(**CHANGED, seed=8),
}


def told(models, tokens, num_top):
    """What plain decoding tells of these tokens: each is forced by a bias, round by round."""
    engine = tiny.local_target(models[0])
    known = []
    for at, token in enumerate(tokens):
        distribution = SamplingParams(logit_bias=((token, 100.0),))
        session = Session("s", len(PROMPT), 64, distribution, num_logprobs=num_top)
        sequence = TokenSequence(session, (*PROMPT, *tokens[:at]))
        verdict = finished(engine.verify(sequence, Proposal()))
        assert verdict.tokens == (token,)
        known += verdict.logprobs
    return with_texts(tuple(known), tokens, Letters().token_bytes)


def raw_distributions(tokens):
    """transformers' own log-softmax of every slot of the output: [n, vocab]."""
    ids = torch.tensor([[*PROMPT, *tokens]])
    with torch.no_grad():
        logits = tiny.hf_model()(ids).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("way", "kind"), LOSSLESS)
def test_every_way_of_speculating_returns_what_plain_decoding_does(models, way, sampling, kind):
    ask = Ask(SAMPLINGS[sampling], 24, speculation=WAYS[way], num_logprobs=5)
    result = collected(run_of(models, ask, kind=kind))
    assert result.logprobs == told(models, result.token_ids, 5)
    speculation = result.stats.speculation
    assert (speculation.num_draft_tokens > 0) == (way != "off")
    if kind == "vanilla":
        assert (speculation.num_accepted_draft_tokens > 0) == (way != "off")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_they_are_the_log_softmax_of_the_raw_logits(models, sampling):
    ask = Ask(SAMPLINGS[sampling], 24, speculation=WAYS["cape"], num_logprobs=4)
    result = collected(run_of(models, ask))
    parts = zip(raw_distributions(result.token_ids), result.token_ids, result.logprobs, strict=True)
    for distribution, token, item in parts:
        assert item.logprob == pytest.approx(float(distribution[token]), abs=1e-5)
        best = distribution.topk(4)
        top = [other.logprob for other in item.top]
        assert top == pytest.approx(best.values.tolist(), abs=1e-5)
        assert [other.token_id for other in item.top] == best.indices.tolist()


def test_their_order_is_by_value_then_by_id():
    logits = np.float32([1.0, 3.0, -1.0, 3.0, -math.inf, 3.0, 1.0])
    item = token_logprob(logits, 2, 6)
    assert [other.token_id for other in item.top] == [1, 3, 5, 0, 6, 2]
    assert item.logprob == item.top[-1].logprob
    total = math.log(3 * math.exp(3) + 2 * math.exp(1) + math.exp(-1))
    assert [other.logprob for other in item.top] == pytest.approx(
        [3 - total] * 3 + [1 - total] * 2 + [-1 - total]
    )
    assert token_logprob(logits, 4, 0) == TokenLogprob(-math.inf)


def test_of_a_small_vocabulary_there_are_no_more_than_all():
    assert len(token_logprob(np.zeros(3, np.float32), 0, 20).top) == 3
    assert token_logprob(np.float32([50, -50]), 0, 1) == TokenLogprob(0.0, (TopLogprob(0, 0.0),))


def test_different_logits_have_different_log_probabilities():
    item = token_logprob(np.float32([np.nextafter(np.float32(30), np.float32(0)), 30]), 0, 2)
    assert [other.token_id for other in item.top] == [1, 0]
    assert item.top[0].logprob > item.top[1].logprob == item.logprob


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_law_are_the_model_s_fault(value):
    with pytest.raises(ModelError, match="the best logit of a position"):
        token_logprob(np.float32([0, value]), 0, 1)


def test_without_likeliest_tokens_there_is_the_token_s_own(models):
    asks = [Ask(max_tokens=20, num_logprobs=count) for count in (0, 5)]
    none, five = (collected(run_of(models, ask)) for ask in asks)
    assert none.logprobs == tuple(replace(item, top=()) for item in five.logprobs)


class Mute(Letters):
    """Knows no bytes of any token, and does not like to be asked."""

    def token_bytes(self, token_id):
        raise AssertionError("nobody wants them")


@pytest.mark.parametrize("way", ["off", "cape", "mcsd"])
def test_who_does_not_ask_gets_none_and_the_same_answer(models, way):
    ask = Ask(SAMPLINGS["sampled"], 30, speculation=WAYS[way])
    unasked = run_of(models, ask, text=Mute())
    told = {"logprobs": (), "origins": (), "rounds": ()}
    assert [replace(chunk, **told) for chunk in unasked] == unasked
    asked = run_of(models, replace(ask, num_logprobs=3, with_origins=True, with_rounds=True))
    assert [replace(chunk, **told) for chunk in asked] == unasked


@pytest.mark.parametrize("count", [-1, 21, 1.0, True])
def test_more_than_twenty_are_refused(count):
    with pytest.raises(InvalidRequest, match=f"logprobs is {count}, but must be 0 to 20"):
        Ask(num_logprobs=count)
    if type(count) is int:
        with pytest.raises(InvalidRequest, match="logprobs"):
            Session("s", 3, 9, num_logprobs=count)


@pytest.mark.parametrize(
    ("facts", "asked", "error"),
    [
        (replace(FACTS, max_logprobs=None), Ask(num_logprobs=0), NotBuilt),
        (replace(FACTS, max_logprobs=5), Ask(num_logprobs=6), InvalidRequest),
        (FACTS, Ask(num_logprobs=1, speculation=WAYS["roots"]), UnsupportedCombination),
    ],
)
def test_what_the_target_can_t_return_is_refused(facts, asked, error):
    with pytest.raises(error, match="logprobs"):
        make_request("s", PROMPT, asked, facts, DraftFacts("vanilla"))


def test_a_target_refuses_them_where_the_law_is_not_its_own(models):
    given = {"verification": Verification.TARGET_INIT, "num_logprobs": MAX_LOGPROBS}
    session = Session("s", len(PROMPT), 9, **given)
    with pytest.raises(UnsupportedCombination, match="logprobs do not go with verification"):
        finished(tiny.local_target(models[0]).verify(TokenSequence(session, PROMPT), Proposal()))


async def talk(target, number, session):
    """A request of guesses that are right for a while; its tokens and their log-probabilities."""
    sequence, said = TokenSequence(session, tiny.tokens(30, number)), []
    proposal = Proposal()
    while True:
        verdict = await target.verify(sequence, proposal)
        sequence.append(verdict.tokens)
        said.append(verdict.logprobs)
        if verdict.finish_reason is not None:
            return sequence.tokens, said
        room, round_ = 30 + session.max_tokens - len(sequence) - 1, len(said)
        proposal = guess(number, round_, tiny.tokens(4, round_)) if room > 6 else Proposal()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
async def test_requests_with_them_and_without_share_a_step(device):
    model = causal_model(tiny.hf_model().to(device))
    sessions = [
        (at, replace(session_of(at, 30, 12), num_logprobs=at % 3 or None)) for at in range(4)
    ]
    alone = [await talk(tiny.local_target(model), *session) for session in sessions]
    async with batched(tiny.local_target(model)) as (target, _):
        together = await asyncio.gather(*(talk(target, *session) for session in sessions))
    assert device == "cuda" or together == alone  # an operator's CPU form is fast, not invariant
    for (tokens, said), (own, own_said) in zip(together, alone, strict=True):
        assert tokens == own
        found, expected = ([one.logprob for one in chain(*parts)] for parts in (said, own_said))
        assert found == pytest.approx(expected, abs=1e-5)
    for number, (tokens, said) in enumerate(together):
        assert sum(map(len, said)) == (len(tokens) - 30 if number % 3 else 0)
