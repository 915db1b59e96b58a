"""A process that behaves as a service does, or badly when asked: `python -m stand_in`."""

import os
import signal
import sys


def main(argv: list[str]) -> int:
    """`--dies CODE`, `--crashes` or `--is-killed` before it is ready, `--deaf` to SIGTERM, `--loud`
    on both streams."""
    if "--crashes" in argv:
        raise RuntimeError("a bug")
    if "--is-killed" in argv:
        sys.stderr.write("a log record\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if "--dies" in argv:
        sys.stderr.write("a warning\nerror: it is not to be\n")
        return int(argv[argv.index("--dies") + 1])
    if "--deaf" in argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "--loud" in argv:
        sys.stderr.write("x" * 200_000 + "\nsecond\n")
        sys.stderr.flush()
    print("ready 127.0.0.1:1", flush=True)  # noqa: T201
    print("on stdout", flush=True)  # noqa: T201
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
