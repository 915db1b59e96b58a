"""`python -m slipstream.bench.peers.worker`: a process in which one engine under test answers.

Libraries, thread pools and memory of one engine are none of another's. The first line has the
engine's settings; then each line is answered with one, and a configuration that fails leaves the
others able to answer.
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

from slipstream.bench.peers.engine import EngineUnderTest, Settings
from slipstream.core.timing import Clock

_ENGINES = {
    "transformers": ("slipstream.bench.peers.engine_transformers", "TransformersEngine"),
    "llama.cpp": ("slipstream.bench.peers.engine_llama", "LlamaEngine"),
    "openai": ("slipstream.bench.peers.engine_endpoint", "EndpointEngine"),
    "embedded": ("slipstream.bench.peers.engine_embedded", "EmbeddedEngine"),
    "embedded-batched": ("slipstream.bench.peers.engine_embedded", "BatchedEmbeddedEngine"),
    "distributed": ("slipstream.bench.peers.engine_services", "RoutedEngine"),
}
"""Module and class by system; each module loads only what it needs."""


def main(clock: Clock = time.perf_counter) -> None:
    """Load what the first line says, then answer every other line."""
    answers = _own_output()
    engine = _tried(answers, lambda: loaded(json.loads(sys.stdin.readline())))
    if engine is None:
        return
    try:
        _write(answers, {"ready": asdict(engine.facts())})
        for line in sys.stdin:
            reply = _tried(answers, partial(answered, engine, json.loads(line), clock))
            if reply is not None:
                _write(answers, reply)
    finally:
        engine.close()


def loaded(settings: Settings) -> EngineUnderTest:
    """Load the system that the settings name. Raises what keeps it from that."""
    module, name = _ENGINES[settings["system"]]
    engine: EngineUnderTest = getattr(import_module(module), name)(settings)
    return engine


def answered(engine: EngineUnderTest, asked: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Return the answer to one line: to prompts that came together, with their seconds."""
    if "load" in asked:
        engine.load(asked["load"])
        return {"loaded": asked["load"]}
    start = clock()
    answers = engine.answer(asked["config"], asked["prompts"], asked["max_new_tokens"])
    wall_s = clock() - start
    return {"wall_s": wall_s, "answers": [asdict(answer) for answer in answers]}


def _tried(answers: TextIO, act: Callable[[], Any]) -> Any:
    """Return what it gives; None, after writing why, where it fails in any way."""
    try:
        return act()
    except Exception as error:
        lines = str(error).strip().splitlines()
        _write(answers, {"error": f"{type(error).__name__}: {lines[0]}" if lines else repr(error)})
        return None


def _write(answers: TextIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def _own_output() -> TextIO:
    """Return standard output as it was; whatever libraries print goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


if __name__ == "__main__":
    main()
