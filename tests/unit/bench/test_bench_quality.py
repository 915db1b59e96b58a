"""What rounding changes is counted right: nothing for the same model, all for another one."""

import pytest
import torch

from slipstream.bench.quality import compare, cut
from slipstream.core.errors import InvalidRequest, ModelMismatch
from support.models import tiny

TEXTS = [tiny.tokens(70, 1), tiny.tokens(300, 2)]


def test_texts_are_cut_into_as_many_next_tokens_as_are_asked_for():
    for wanted in (1, 69, 70, 200, 368):
        chunks = cut(TEXTS, wanted)
        assert sum(len(chunk) - 1 for chunk in chunks) == wanted
        assert max(map(len, chunks)) <= 257
    with pytest.raises(InvalidRequest, match="num_tokens is 369, but the texts have 368"):
        cut(TEXTS, 369)


def test_a_model_agrees_with_itself_in_everything():
    model = tiny.causal()
    found = compare(model, model, cut(TEXTS, 200))
    assert (found.num_tokens, found.top1, found.kl) == (200, 1.0, 0.0)
    assert found.perplexity == found.reference_perplexity


def test_the_figures_are_those_of_transformers_own_logits():
    chunks = cut(TEXTS[:1], 40)
    found = compare(tiny.causal(seed=0), tiny.causal(seed=1), chunks)
    tokens = torch.tensor(chunks)
    with torch.inference_mode():
        theirs, ours = (
            tiny.hf_model(seed=at)(tokens[:, :-1]).logits[0].double().log_softmax(1)
            for at in (0, 1)
        )
    assert found.top1 == pytest.approx(float((theirs.argmax(1) == ours.argmax(1)).double().mean()))
    assert found.kl == pytest.approx(
        float((theirs.exp() * (theirs - ours)).sum(1).mean()), rel=1e-4
    )
    loss = -ours.gather(1, tokens[0, 1:, None]).mean()
    assert found.perplexity == pytest.approx(float(loss.exp()), rel=1e-4)


def test_models_of_other_vocabularies_are_refused():
    wide = tiny.causal("gpt-neox")
    wide.vocab_size += 1
    with pytest.raises(ModelMismatch, match="the reference has"):
        compare(wide, tiny.causal(), cut(TEXTS, 5))
