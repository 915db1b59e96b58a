"""Loads targets in a process with little memory: a file that breaks it can't break the tests.

`python tests/hostile_files.py BYTES` reads paths, one a line, and writes one line of JSON for
each: the kind of the error, "" for a model that loaded, and its sentence.
"""

import json
import resource
import sys
from pathlib import Path

import torch

from slipstream.core.errors import ModelError
from slipstream.models.loading import load_model, load_target_parts
from slipstream.models.target.causal import CausalModel


def outcome(path: Path) -> dict[str, str]:
    """Load a target, and return what came of it."""
    try:
        CausalModel(load_model(str(path)).model)
        load_target_parts(str(path))
    except Exception as error:
        kind = "ModelError" if isinstance(error, ModelError) else type(error).__name__
        return {"kind": kind, "sentence": str(error)}
    return {"kind": "", "sentence": ""}


def main() -> None:
    torch.set_num_threads(1)
    limit = _data_bytes() + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(outcome(Path(line.rstrip("\n")))) + "\n")
        sys.stdout.flush()


def _data_bytes() -> int:
    """Memory that the process has now, as the limit counts it."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
