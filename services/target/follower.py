"""`python -m slipstream.target.follower FD`: one rank of a target that is led by another process.

Started by `slipstream.target.crew`; serves nobody. Ends when its leader does.
"""

import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from slipstream.core.errors import InvalidRequest, ModelError, SlipstreamError
from slipstream.models.causal import CausalModel
from slipstream.models.cores import Cores, load_on
from slipstream.models.loading import load_target_parts
from slipstream.models.ranks import join_ranks, leave_ranks
from slipstream.models.tensor_parallel import TensorParallelWorker
from slipstream.target.crew import Farewell, Post


def main(argv: Sequence[str]) -> int:
    """Follow until the leader says that it is over; the process's exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader decides when requests are done
        signal.signal(number, signal.SIG_IGN)
    with Connection(int(argv[0])) as leader:
        try:
            post: Post = leader.recv()
            return _follow(post, leader)
        except SlipstreamError as error:
            leader.send(Farewell(str(error), isinstance(error, InvalidRequest | ModelError)))
            return 1
        except (EOFError, ConnectionError):  # the leader is gone
            return 0
        finally:
            leave_ranks()


def _follow(post: Post, leader: Connection) -> int:
    count = post.plan.num_threads
    cores = Cores(count, post.plan.pin_threads, first=post.rank * count)
    worker = load_on(lambda load: load(), lambda: _load(post), cores)
    while (step := leader.recv()) is not None:
        worker.run(step)
    return 0


def _load(post: Post) -> TensorParallelWorker:
    plan = post.plan
    ranks = join_ranks(post.rank, plan.size, device=plan.device, meeting=post.meeting)
    loaded = load_target_parts(
        str(plan.model), dtype=plan.dtype, device=plan.device, num_ranks=plan.size
    )
    return TensorParallelWorker(
        CausalModel(loaded.model, numerics=plan.numerics, ranks=ranks), ranks
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
