"""Log-probabilities of prompts: those of a forward of the whole text, whatever was cached."""

import pytest
import torch

from slipstream.client import Client, Mode, SpeculationOptions, errors
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.logprobs import MAX_PROMPT_LOGPROBS
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import Ask, Generation, ModelFacts, make_request

PLAIN = SpeculationOptions(mode=Mode.OFF)
TOLD = {"logprobs": 3, "prompt_logprobs": True, "max_tokens": 4, "speculation": PLAIN}


@pytest.fixture(scope="module", params=["native", "off"])
def client(request, tmp_path_factory):
    from support.models.tiny_checkpoint import save_checkpoint

    patch = pytest.MonkeyPatch()
    if request.param == "off":
        patch.setenv("SLIPSTREAM_NATIVE", "off")
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    save_checkpoint(folder, context_length=640)
    with Client.embedded(str(folder), "none", dtype="float32") as client:
        yield client, folder
    patch.undo()


def expected(folder, ids):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


@pytest.mark.parametrize("length", [1, 2, 33, 600])
def test_a_prompt_has_what_one_forward_of_it_says(client, length):
    client, folder = client
    ids = [(7 * number + 3) % 40 for number in range(length)]
    told = client.generate(ids, **TOLD).prompt.logprobs
    assert len(told) == length
    assert told[0] is None
    table = expected(folder, ids)
    for position, item in enumerate(told[1:]):
        row = table[position]
        assert item.logprob == pytest.approx(float(row[ids[position + 1]]), abs=1e-4)
        best = row.topk(3).values.tolist()
        assert [top.logprob for top in item.top] == pytest.approx(best, abs=1e-4)


def test_a_prompt_that_is_cached_says_the_same_again(client):
    client, _ = client
    ids = [(5 * number + 1) % 40 for number in range(100)]
    first, again = (client.generate(ids, **TOLD) for _ in range(2))
    assert again.prompt.logprobs == first.prompt.logprobs
    assert again.stats.num_cached_tokens == 0
    plain = client.generate(ids, max_tokens=4)
    assert plain.prompt.logprobs == ()
    assert plain.stats.num_cached_tokens > 0
    assert plain.token_ids == first.token_ids


def test_what_was_generated_says_of_itself_what_it_said_then(client):
    client, _ = client
    ids = list(range(5, 25))
    result = client.generate(ids, **{**TOLD, "max_tokens": 8})
    whole = client.generate([*ids, *result.token_ids], **TOLD)
    told = whole.prompt.logprobs[len(ids) :]
    expected = [item.logprob for item in result.logprobs]
    assert [item.logprob for item in told] == pytest.approx(expected, abs=1e-6)


def test_a_later_turn_has_none(client):
    client, _ = client
    with client.session() as session:
        assert session.generate("hello", **TOLD).prompt.logprobs
        with pytest.raises(errors.UnsupportedCombination, match="first turn only"):
            session.generate("more", **TOLD)


def test_values_without_a_form_on_the_wire_are_refused():
    with pytest.raises(InvalidRequest, match="goes with logprobs"):
        Ask(prompt_logprobs=True)
    with pytest.raises(UnsupportedCombination, match="from its beginning"):
        Generation("x", Ask(prompt_logprobs=True, num_logprobs=0, request_id="r"), num_received=1)
    facts = ModelFacts("m", 40, 10**6, frozenset({1}), max_logprobs=20)
    many = Ask(num_logprobs=20, prompt_logprobs=True, speculation=PLAIN)
    with pytest.raises(InvalidRequest, match=f"at most {MAX_PROMPT_LOGPROBS} fit"):
        make_request("s", [2] * 4000, many, facts, DraftFacts("ngram"))
