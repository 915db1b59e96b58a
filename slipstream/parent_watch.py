"""Parent-death watch: runs another program, and on Linux kills it when its parent ends.

`python parent_watch.py PARENT COMMAND...`: the kernel kills this process when the thread that
started it ends, also after exec and in a process group of its own. This runs in a process with one
thread, because nothing may run between fork and exec in a process that has several. Standard
library only.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def watched_command(command: Sequence[str]) -> list[str]:
    """Return the command that becomes `command`, to be started by a thread of this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Bind this process to its parent, unless that has ended, and become the command.

    It leads a process group: a terminal's Ctrl-C reaches the parent alone, which stops its
    processes in order.
    """
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl") and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "the process can't be bound to its parent")
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)
    os.setpgid(0, 0)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
