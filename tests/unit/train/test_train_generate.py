"""Many answers at once are the answers that one at a time would be."""

from random import Random

import pytest
import torch

from slipstream.models.native.library import has_kernels
from slipstream.train.answers import BulkTarget, Talk
from support.models import tiny

PROMPTS = [tuple(tiny.tokens(count, seed=count)) for count in (3, 70, 1, 24)]
LENGTH = 45  # prompts and answers cross borders of the cache's blocks


@pytest.fixture(params=["torch", "native"])
def answers(request):
    """A function that returns answers at these temperatures; steps take fewer tokens than prompts
    have."""
    if request.param == "native" and not has_kernels():
        pytest.skip("there are no native kernels here")
    engine = tiny.local_target(tiny.causal(engine=request.param))

    def answers(*temperatures, count=4, ends=frozenset(), seed=0):
        pairs = zip(PROMPTS[:count], temperatures * count, strict=False)
        talks = [Talk(prompt, (), temperature) for prompt, temperature in pairs]
        return BulkTarget(engine, ends, LENGTH, max_rows=16).answers(talks, Random(seed))

    return answers


def test_greedy_answers_are_those_of_transformers(answers):
    model, fixed = tiny.hf_model(), {"do_sample": False, "eos_token_id": None}
    for prompt, answer in zip(PROMPTS, answers(0.0), strict=True):
        (text,) = model.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, **fixed).tolist()
        assert answer == text[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_depends_on_its_own_prompt_and_seed_only(answers, temperature):
    whole = answers(temperature)
    assert answers(temperature, count=1) == whole[:1]
    assert (answers(temperature, seed=1) == whole) == (temperature == 0)


def test_an_answer_holds_one_end_at_most_and_that_last(answers):
    ends = frozenset(range(6))
    for answer in answers(0.0, 1.0, ends=ends):
        assert not ends.intersection(answer[:-1])
        assert len(answer) == LENGTH or answer[-1] in ends
