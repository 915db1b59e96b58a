"""`python -m slipstream_target.tensor_parallel_worker FD`: one rank of a target."""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from slipstream.core.errors import InvalidRequest, ModelError, SlipstreamError
from slipstream.models.dtypes import FP8
from slipstream.models.loading import causal_model, sizes_of
from slipstream.models.threads import Cores, load_on
from slipstream.models.torch.loading import load_target_parts
from slipstream.models.torch.ranks import join_ranks, leave_ranks
from slipstream.models.torch.tensor_parallel import TensorParallelGroup, TensorParallelWorker
from slipstream_target.config import layers_of
from slipstream_target.tensor_parallel import WorkerFailure, WorkerTask


def main(argv: Sequence[str]) -> int:
    """Carry out steps until the last one; return the process's exit code.

    After an error the process ends at once: to leave the ranks is to wait for the others.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the driver decides when requests are done
        signal.signal(number, signal.SIG_IGN)
    with Connection(int(argv[0])) as driver:
        task: WorkerTask = driver.recv()
        try:
            _work(task, driver)
            leave_ranks()
            return 0
        except (EOFError, ConnectionError):  # the driver is gone
            pass
        except SlipstreamError as error:
            is_input = isinstance(error, InvalidRequest | ModelError)
            driver.send(WorkerFailure(str(error), is_input))
        except Exception as error:
            traceback.print_exc()
            reason = f"rank {task.rank} failed at a step of all ranks: {error!r}"
            driver.send(WorkerFailure(reason, is_input=False))
        os._exit(1)


def _work(task: WorkerTask, driver: Connection) -> None:
    compute = task.config.compute
    cores = Cores(compute.threads, compute.pin_threads, first=task.rank * (compute.threads or 0))
    worker = load_on(lambda load: load(), lambda: _load(task), cores)
    while (step := driver.recv()) is not None:
        worker.run(step)


def _load(task: WorkerTask) -> TensorParallelWorker:
    config, compute, size = task.config, task.config.compute, task.config.tensor_parallel
    ranks = join_ranks(task.rank, size, device=compute.device, meeting=task.meeting)
    loaded = load_target_parts(
        config.model, dtype=compute.dtype, device=compute.device, num_ranks=size
    )
    model = causal_model(
        loaded.model,
        numerics=config.numerics,
        split=TensorParallelGroup(ranks, is_scaled=compute.dtype == FP8),
        path=loaded.path,
        hidden_layers=layers_of(config.hidden_layers, sizes_of(loaded.model).layout.num_layers),
    )
    return TensorParallelWorker(model, ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
