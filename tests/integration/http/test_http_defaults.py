"""What a body leaves out is as the model's generation_config.json has it; what it has, wins."""

import json

import pytest

from slipstream.client import SamplingParams
from support.services.cluster import running
from support.services.http_front import chat, completion
from support.services.processes import save_long_checkpoint

OWN = {"temperature": 0.6, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}
OTHER = {"temperature": 1.0, "top_k": 0, "top_p": 0.5, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    folder = save_long_checkpoint(tmp_path_factory.mktemp("defaults") / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, **OWN}))
    with running(folder) as cluster:
        yield cluster


def texts(client, **body):
    """Return the text of a chat, and of the same as a response and as a completion."""
    body, given = {"seed": 3, **body}, {"model": "tiny", "max_output_tokens": 40}
    (choice,) = chat(client, max_tokens=40, extra_body=body).choices
    response = client.responses.create(input="hello", extra_body=body, **given)
    completed = completion(client, max_tokens=40, extra_body=body).choices[0]
    return choice.message.content, response.output_text, completed.text


def test_a_body_without_sampling_is_answered_as_one_with_the_models(client):
    assert texts(client) == texts(client, **OWN) != texts(client, **OTHER)
    assert texts(client, top_p=0) == texts(client, temperature=0)
    assert client.models.retrieve("tiny").sampling_defaults == OWN


@pytest.mark.parametrize("name", OWN)
def test_a_parameter_of_a_body_wins_over_the_models(client, sdk, name):
    given = {name: OTHER[name]}
    sampling = SamplingParams(**{**OWN, **given}, seed=3)
    expected = sdk.generate("hello", sampling=sampling, max_tokens=40).text
    assert texts(client, **given)[:2] == (expected, expected)


def test_the_sdk_is_greedy_unless_it_leaves_parameters_to_the_model(sdk):
    assert sdk.model_info().sampling_defaults == OWN
    own = SamplingParams(temperature=0.6, top_k=9, seed=3)
    left = {"sampling": SamplingParams(seed=3), "model_defaults": ["temperature", "top_k"]}
    asked = ({}, {"sampling": SamplingParams()}, {"sampling": own}, left)
    plain, greedy, expected, found = (sdk.generate("hello", **it).text for it in asked)
    assert plain == greedy != expected == found
