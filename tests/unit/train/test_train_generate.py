"""Many answers at once are the answers that one at a time would be."""

import pytest
import torch

from slipstream.models.native.library import has_kernels
from slipstream.train.answers import BulkModel, Talk, answers, draw
from support.models import tiny

PROMPTS = [tuple(tiny.tokens(count, seed=count)) for count in (3, 70, 1, 24)]
LENGTH = 45  # prompts and answers cross borders of the cache's blocks
NATIVE_FAMILIES = ("llama", "qwen2", "qwen3") if has_kernels() else ()
NO_END = frozenset()


def decoder(engine, family="llama"):
    return BulkModel(tiny.causal(family, engine=engine), max_new_tokens=LENGTH)


@pytest.fixture(params=["torch", "native"])
def model(request):
    if request.param == "native" and not has_kernels():
        pytest.skip("there are no native kernels here")
    return decoder(request.param)


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def asks(*temperatures):
    return [
        Talk(prompt, (), temperatures[i % len(temperatures)]) for i, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize(
    ("engine", "family"),
    [*(("torch", family) for family in tiny.FAMILIES), *(("native", at) for at in NATIVE_FAMILIES)],
)
def test_greedy_answers_are_those_of_transformers(engine, family):
    expected = [
        tiny.hf_model(family)
        .generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=None)
        .tolist()[0][len(prompt) :]
        for prompt in PROMPTS
    ]
    assert answers(decoder(engine, family), asks(0.0), NO_END, noise()) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_depends_on_its_own_prompt_only(model, temperature):
    whole = answers(model, asks(temperature), NO_END, noise())
    first = answers(model, asks(temperature)[:1], NO_END, noise())
    assert whole[:1] == first


def test_an_answer_holds_one_end_at_most_and_that_last(model):
    ends = frozenset(range(6))
    for answer in answers(model, asks(0.0, 1.0), ends, noise()):
        assert not ends.intersection(answer[:-1])
        assert len(answer) == LENGTH or answer[-1] in ends


def test_the_same_seed_draws_the_same_answers_and_another_seed_others(model):
    first, again, other = (answers(model, asks(1.0), NO_END, noise(seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("size", [5, 64, 200])
def test_a_grid_of_noise_draws_every_token_as_often_as_the_law_says(size):
    distribution = torch.rand(size, generator=noise()).square()
    distribution[size // 2] = 0
    distribution /= distribution.sum()
    grid = (torch.arange(4000) + 0.5) / 4000
    tokens = draw((distribution.log() * 0.7).expand(4000, size), torch.full((4000,), 0.7), grid)
    counts = torch.bincount(tokens, minlength=size)
    assert counts[size // 2] == 0
    assert (counts / 4000 - distribution).abs().max() < 1 / 4000 + 1e-5
    assert tokens.diff().min() >= 0, "the distribution is inverted in the order of ids"


def test_the_coldest_draw_is_the_first_of_the_highest():
    logits = torch.zeros(3, 200)
    logits[0, [150, 199]], logits[1, 63], logits[2, [64, 65]] = 2.0, 1.0, 1.0
    assert draw(logits, torch.zeros(3), torch.full((3,), 0.99)).tolist() == [150, 63, 64]


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-24])
def test_noise_at_its_edges_draws_a_token_that_the_law_has(edge):
    logits = torch.full((1, 70), float("-inf"))
    logits[0, [1, 65]] = 0.0
    assert draw(logits, torch.ones(1), torch.tensor([edge])).item() == (1 if edge == 0 else 65)
