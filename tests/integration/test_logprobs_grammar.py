"""What a grammar forces is as likely as it is to the model itself, with speculation and without."""

import pytest
import torch

from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions
from support.models import tiny_checkpoint


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target") / "tiny")
    with Client.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        yield client


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_do_not_know_of_grammars(client, temperature):
    asked = {
        "max_tokens": 24,
        "sampling": SamplingParams(temperature=temperature, seed=3),
        "regex": "[ab]{6}, that is all, [0-9]{4}",
        "logprobs": 3,
    }
    plain, speculative = (
        client.generate("hello", **asked, speculation=SpeculationOptions(mode=mode))
        for mode in (Mode.OFF, Mode.FORCED)
    )
    assert speculative.token_ids == plain.token_ids
    assert speculative.logprobs == plain.logprobs
    assert speculative.stats.speculation.num_accepted_draft_tokens > 0
    ids = torch.tensor([[*client.tokenize("hello"), *plain.token_ids]])
    with torch.no_grad():
        logits = tiny_checkpoint.tiny_llama().eval()(ids).logits[0].double()
    distributions = torch.log_softmax(logits[-len(plain.token_ids) - 1 : -1], -1)
    each = zip(distributions, plain.token_ids, plain.logprobs, strict=True)
    for distribution, token, item in each:
        assert item.logprob == pytest.approx(float(distribution[token]), abs=1e-5)
        assert item.top[0].logprob == pytest.approx(float(distribution.max()), abs=1e-5)
    assert any(item.top[0].text != item.text for item in plain.logprobs)
