"""The average of weights, against its recursion written out."""

import pytest
import torch

from slipstream.train.run_files import WeightAverage


def model(values):
    module = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([values]))
    return module


def test_an_average_is_its_recursion_and_young_ones_forget_faster():
    linear = model([1.0, 2.0])
    average = WeightAverage(linear, 0.5)
    expected = linear.weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            linear.weight.add_(step)
        average.update(step)
        decay = min(0.5, step / (step + 9))
        expected = decay * expected + (1 - decay) * linear.weight.detach()
        torch.testing.assert_close(average.tensors["weight"], expected)


def test_without_decay_the_average_is_the_weights():
    linear = model([1.0, 2.0])
    average = WeightAverage(linear, 0.0)
    with torch.no_grad():
        linear.weight.mul_(0.1)
    average.update(1)
    assert torch.equal(average.tensors["weight"], linear.weight)


def test_the_average_is_applied_for_a_while_whatever_happens():
    linear = model([1.0, 2.0])
    average = WeightAverage(linear, 0.9)
    with torch.no_grad():
        linear.weight.zero_()
    with pytest.raises(KeyError), average.applied():
        assert linear.weight.tolist() == [[1.0, 2.0]]
        raise KeyError
    assert linear.weight.tolist() == [[0.0, 0.0]]
    assert average.tensors["weight"].tolist() == [[1.0, 2.0]]
