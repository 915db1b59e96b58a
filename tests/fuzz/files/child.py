"""Loads cases in a process with little memory: a file that breaks it breaks nothing else.

`python -m fuzz.files.child BYTES SECONDS` reads cases from standard input, each a line
of JSON, and writes a line of JSON for each: its outcome, and what is wrong. A case is bytes of one
file, or a path that is loaded as it is.
"""

import base64
import json
import os
import resource
import sys
import tempfile
import traceback
from pathlib import Path

from fuzz.files.kinds import Kind, kinds_by_name

LOADED, REFUSED = "loaded", "refused"
FAULT = "fault"
"""An error of another kind, or a refusal that is no sentence."""
_MAX_CHARS = 4100


def data_bytes() -> int:
    """Return the memory that this process has now, as the limit counts it."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) * 1024


def outcome(kind: Kind, path: Path, *, is_intact: bool) -> tuple[str, str]:
    """Load one file; what came of it, and its fault if it shows one, or the refusal."""
    try:
        kind.load(path)
    except kind.refusals as error:
        sentence = str(error)
        if is_intact:
            return FAULT, f"an intact file is refused: {sentence[:200]}"
        is_sentence = sentence.isprintable() and 0 < len(sentence) <= _MAX_CHARS
        return (REFUSED, sentence) if is_sentence else (FAULT, f"no sentence at {_place(error)}")
    except BaseException as error:  # panics of libraries in Rust are no `Exception`
        return FAULT, f"{type(error).__name__} at {_place(error)}"
    return LOADED, ""


def _place(error: BaseException) -> str:
    """Return the last line of our own code that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/slipstream/" in frame.filename] or frames
    name = own[-1].filename
    return f"{name.rpartition('/slipstream/' if own is not frames else '/')[2]}, {own[-1].name}"


def limit_cpu(seconds: float) -> None:
    """End this process when it has taken so many more seconds of CPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def main() -> None:
    num_bytes, seconds, kinds = int(sys.argv[1]), float(sys.argv[2]), kinds_by_name()
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no reply
    with tempfile.TemporaryDirectory() as scratch:
        paths: dict[str, Path] = {}
        for line in sys.stdin:
            name, data, is_intact, given = json.loads(line)
            if name not in paths:
                paths[name] = _prepared(kinds[name], Path(scratch) / name)
                limit = data_bytes() + num_bytes
                resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
            path = Path(given) if given else paths[name]
            if not given:
                path.write_bytes(base64.b64decode(data))
            limit_cpu(seconds)
            found = outcome(kinds[name], path, is_intact=is_intact)
            replies.write(json.dumps(found) + "\n")
            replies.flush()


def _prepared(kind: Kind, folder: Path) -> Path:
    """Make a kind's folder, and load what it needs once, before memory is limited."""
    folder.mkdir()
    kind.prepare(folder)
    path = folder / kind.file
    path.write_bytes(kind.seeds()[0])
    outcome(kind, path, is_intact=True)
    return path


if __name__ == "__main__":
    main()
