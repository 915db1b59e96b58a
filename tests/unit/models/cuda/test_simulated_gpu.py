"""The simulated GPU finds each kind of fault that a real one answers with an error, or with wrong
numbers; the tests of the product run on it where there is no real one."""

import pytest
import torch

from slipstream.models.cuda.graphs import Replay
from slipstream.models.dtypes import FLOAT32
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.torch.arrays import TorchBuffers
from support.cuda.gpu import GpuError, simulated_gpu

CUDA = torch.device("cuda")
MASK = torch.tensor([True, False, True, True])


@pytest.fixture
def gpu():
    with simulated_gpu() as device:
        yield device


def run(body, *inputs, replay=None):
    replay = Replay(CUDA) if replay is None else replay
    return [out.cpu() for out in replay.run("a body", body, inputs)]


def test_a_graph_computes_what_its_body_does_with_each_input(gpu):
    replay = Replay(CUDA)
    for seed, key in enumerate("abac"):
        x = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        body = lambda given: (given.cumsum(0) * 2 + torch.arange(4, device=CUDA),)  # noqa: E731
        (out,) = replay.run(key, body, (x,))
        assert torch.equal(out.cpu(), x.cumsum(0) * 2 + torch.arange(4))
    assert [*replay._entries] == ["a", "b", "c"]


def test_operands_of_two_devices_are_refused(gpu):
    with pytest.raises(GpuError, match="add has operands on the GPU and on the host"):
        torch.ones(4).to(CUDA) + torch.ones(4)
    assert (torch.ones(4).to(CUDA) + torch.tensor(1.0)).tolist() == [2.0] * 4


NUMBERS = [1.0, 2.0, 3.0, 4.0]
REFUSED = {
    "reads values on the host": [
        lambda x: x * x.sum().item(),
        lambda x: x + 1 if x.sum() > 0 else x,
        lambda x: x[: int(x[0])],
        lambda x: x * len(x.tolist()),
        lambda x: x.cpu().to(CUDA),
    ],
    "depends on values": [
        lambda x: x[x > 0],
        torch.unique,
        lambda x: torch.repeat_interleave(x, x.long()),
    ],
    "copies between devices": [
        lambda x: x + torch.tensor(NUMBERS, device=CUDA),
        lambda x: x + MASK.to(CUDA),
        lambda x: x[[0, 1]],
    ],
    "pin_memory allocates": [lambda x: (x, torch.ones(4).pin_memory())[0]],
    "draws from the default generator": [
        lambda x: x + torch.randn(4, device=CUDA),
        torch.bernoulli,
    ],
}


@pytest.mark.parametrize(("reason", "body"), [(at, body) for at in REFUSED for body in REFUSED[at]])
def test_a_capture_is_refused_what_a_graph_can_not_hold(gpu, reason, body):
    with pytest.raises(GpuError, match=reason):
        run(lambda x: (body(x),), torch.ones(4))


def on_device(value):
    return torch.full((4,), value).to(CUDA)


@pytest.mark.parametrize(
    ("make", "reason"), [(on_device, "stale pointer"), (float, "computes otherwise")]
)
def test_what_a_graph_does_not_follow_is_found(gpu, make, reason):
    owner, replay = {"scale": make(2.0)}, Replay(CUDA)
    body = lambda x: (x * owner["scale"],)  # noqa: E731
    run(body, torch.ones(4), replay=replay)
    owner["scale"] = make(3.0)
    with pytest.raises(GpuError, match=reason):
        run(body, torch.ones(4), replay=replay)


def test_a_body_that_is_not_the_same_function_each_time_is_found(gpu):
    count = torch.zeros(4).to(CUDA)
    with pytest.raises(GpuError, match="computes otherwise"):
        run(lambda x: (count.add_(x).clone(),), torch.ones(4))
    made, replay = [], Replay(CUDA)

    def body(x):
        made.append(x)  # a call to warm up, the capture, the comparison
        return (x + 1,) if len(made) <= 3 else (x * 2 - 0 * x + 0,)

    run(body, torch.ones(4), replay=replay)
    with pytest.raises(GpuError, match="other operators"):
        run(body, torch.ones(4), replay=replay)


def test_memory_that_is_used_outside_of_its_replay_is_found(gpu):
    kept, replay = [], Replay(CUDA)

    def body(x):
        kept.append(x + 1)
        return (kept[-1] * 2,)

    (first,) = replay.run("k", body, (torch.ones(4),))
    with pytest.raises(GpuError, match="memory that a capture allocated"):
        kept[1] + 1  # the first call warms up
    row = first[:2]
    assert row.tolist() == [4, 4]
    replay.run("k", body, (torch.zeros(4),))
    with pytest.raises(GpuError, match="a later replay has overwritten"):
        row.tolist()


def test_a_missing_wait_between_streams_is_found(gpu):
    x, side = torch.ones(4).to(CUDA), torch.cuda.Stream(CUDA)
    with pytest.raises(GpuError, match="no wait"), torch.cuda.stream(side):
        x.mul_(2)
    side.wait_stream(torch.cuda.current_stream(CUDA))
    with torch.cuda.stream(side):
        x.mul_(2)
    with pytest.raises(GpuError, match="no wait"):
        x.add_(1)
    torch.cuda.current_stream(CUDA).wait_stream(side)
    x.add_(1)


def test_slots_are_copied_without_a_wait(gpu):
    pool = KvPool(KvLayout(1, 1, 4, FLOAT32, "cuda"), 1, buffers=TorchBuffers("cuda"))
    pool.layer(0).copy_(torch.arange(pool.scratch.stop, device=CUDA)[:, None])
    gpu.num_waits = 0
    pool.copy([3, 4], [4, 3])  # all are read before any is written
    assert gpu.num_waits == 0
    assert pool.layer(0)[0, 2:6, 0].tolist() == [2, 4, 3, 5]


def test_waits_for_the_device_are_counted(gpu):
    x = torch.empty(4, device=CUDA).copy_(torch.ones(4).pin_memory(), non_blocking=True)
    assert gpu.num_waits == 0
    assert x.sum().item() + torch.ones(4).to(CUDA).cpu()[0] == 5
    assert gpu.num_waits == 3
