"""A replayed body computes what the body does, on tensors that stay where they are."""

import torch

from slipstream.models.cuda.graphs import Replay

CPU = torch.device("cpu")


def double(x, y):
    return 2 * x + y, (x * y).sum().view(1)


def test_inputs_and_outputs_stay_where_they_are():
    replay, seen = Replay(CPU), []

    def body(x):
        seen.append(x.data_ptr())
        return (x + 1,)

    first = replay.run("k", body, (torch.zeros(3),))
    second = replay.run("k", body, (torch.ones(3),))
    assert first[0] is second[0]
    assert first[0].tolist() == [2, 2, 2], "a later run overwrites what an earlier one returned"
    assert len(set(seen)) == 1


def test_the_least_recently_used_key_is_forgotten():
    replay = Replay(CPU, max_graphs=2)
    for key in ("a", "b", "a", "c"):
        replay.run(key, double, (torch.ones(2), torch.ones(2)))
    assert len(replay) == 2
    assert "a" in replay
    assert "b" not in replay
