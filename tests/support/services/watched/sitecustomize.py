"""Runs first in each Python process that tests start: a service writes what holds its loops."""

import sys

if any(word.startswith("slipstream_") or word == "serve" for word in sys.orig_argv):
    from support.services.stalls import LoopWatch, write_stall

    LoopWatch(write_stall).start()
