"""`python -m slipstream.bench.peers.seat`: a process in which one system answers. See `wire`.

Every system has a process of its own, so that libraries, thread pools and memory of one are none
of another's.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any, TextIO

from slipstream.bench.peers.wire import Answerer, Settings
from slipstream.core.timing import Clock

_SITTERS = {
    "transformers": "slipstream.bench.peers.by_transformers",
    "llama.cpp": "slipstream.bench.peers.by_llama",
    "openai": "slipstream.bench.peers.by_endpoint",
    "embedded": "slipstream.bench.peers.by_embedded",
    "distributed": "slipstream.bench.peers.by_services",
}
"""Modules with a function `sit`, by system; each loads only what it needs."""


def main(clock: Clock = time.perf_counter) -> None:
    """Load what the first line says, then answer every other line."""
    answers = _own_output()
    answerer = _tried(answers, lambda: sit(json.loads(sys.stdin.readline())))
    if answerer is None:
        return
    try:
        _say(answers, {"ready": asdict(answerer.facts())})
        for line in sys.stdin:
            asked = json.loads(line)
            said = _tried(answers, partial(answered, answerer, asked, clock))
            if said is not None:
                _say(answers, said)
    finally:
        answerer.close()


def sit(settings: Settings) -> Answerer:
    """Load the system that the settings name. Raises what keeps it from that."""
    answerer: Answerer = import_module(_SITTERS[settings["system"]]).sit(settings)
    return answerer


def answered(answerer: Answerer, asked: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """What the seat says to one line: that an arm is loaded, or the answers to prompts that came
    together and the seconds that all of them took."""
    if "load" in asked:
        answerer.load(asked["load"])
        return {"loaded": asked["load"]}
    start = clock()
    answers = answerer.answer(asked["arm"], asked["prompts"], asked["max_new_tokens"])
    wall_s = clock() - start
    return {"wall_s": wall_s, "answers": [asdict(answer) for answer in answers]}


def _tried(answers: TextIO, act: Callable[[], Any]) -> Any:
    """What it gives; None, and a word of why, where it fails. Other people's code raises all."""
    try:
        return act()
    except Exception as error:
        said = str(error).strip().splitlines()
        _say(answers, {"error": f"{type(error).__name__}: {said[0]}" if said else repr(error)})
        return None


def _say(answers: TextIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def _own_output() -> TextIO:
    """Standard output as it was; whatever libraries print goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


if __name__ == "__main__":
    main()
