"""Becomes another program that does not outlive the process that started it. Linux only.

`python leash.py PARENT COMMAND...`: the kernel kills this process when the thread that started it
ends, and that stays so across exec; so does a process group of its own. Done here, in a process
with one thread, because nothing may run between fork and exec in a process that has several.
Standard library only.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """The command that becomes `command`, to be started by a thread of this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Put the leash on, unless the parent is gone already, and become the command.

    It leads a process group: a terminal's Ctrl-C is for the parent, who knows the order to end in.
    """
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "the process can't be tied to its parent")
    if os.getppid() != parent:  # it ended before the leash was on
        sys.exit(1)
    os.setpgid(0, 0)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
