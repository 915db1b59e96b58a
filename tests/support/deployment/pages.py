"""Pages of the documentation as programs: their blocks, run in order in one shell, and its output.
What a reader sees is what runs. ```sh blocks are a bash session, ```python blocks programs on
their own; a ```text block shows what the one before it prints. `...` there stands for anything,
a line of it for any lines, and services that write meanwhile may come between."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[3]
SESSIONS = (ROOT / "docs/quick-start.md", *sorted((ROOT / "docs/how-to").glob("*.md")))
"""The pages of which every block runs."""
LIMIT_S = 480.0
END_S = 30.0
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS = ("sh", "python")
MODELS = ("smollm2-135m", "smollm2-135m-q4_1")
"""The model that how-tos name, and the default of every command."""
MARK = "@@ line "
_STRICT = "set -euo pipefail\n"
_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "--")
_LOOPBACK = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@dataclass(frozen=True, slots=True)
class Block:
    """A block that a page has a reader run, and its output, where the page shows any."""

    line: int
    kind: str
    code: str
    shown: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """Return the block as part of a shell's script, behind a line that says which it is."""
        code = self.code
        if self.kind == "python":
            code = f"python - <<'END_OF_PYTHON'\n{code}END_OF_PYTHON\n"
        return f"printf '\\n%s\\n' '{MARK}{self.line}'\n{code}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a page: the shell's exit code, what each block printed, what it left running."""

    code: int
    said: dict[int, tuple[str, ...]]
    has_leftovers: bool


def fences(text: str) -> list[tuple[int, str, str]]:
    """Every block of a page: its line, its language, its content."""
    found = FENCE.finditer(text)
    return [(text.count("\n", 0, at.start(2)) + 1, at[1].strip(), at[2]) for at in found]


def blocks(text: str) -> list[Block]:
    """Return the blocks that run, in order. Raises `ValueError` for one neither run nor shown."""
    found: list[Block] = []
    for line, kind, content in fences(text):
        if kind in RUNS:
            found.append(Block(line, kind, content))
        elif kind == "text" and found and not found[-1].shown:
            last = found[-1]
            found[-1] = Block(last.line, last.kind, last.code, tuple(content.splitlines()))
        else:
            raise ValueError(f"line {line}: a block of {kind or 'no language'} that nothing checks")
    return found


def missing(shown: Sequence[str], said: Sequence[str]) -> str | None:
    """The first line of `shown` that was not said behind those before it; None if all were."""
    rest = iter(said)
    for line in shown:
        if line.strip() in ("", "..."):
            continue
        wanted = re.compile(".*".join(map(re.escape, line.rstrip().split("..."))))
        if not any(wanted.fullmatch(at.rstrip()) for at in rest):
            return line
    return None


def run(page: Sequence[Block], folder: Path, *, tools: Path, models: Path) -> Outcome:
    """Run a page in `folder`; programs in `tools` are found first. All that it started is ended.
    `models` has the pages' model, and what was measured of it before."""
    script = folder.parent / f"{folder.name}.sh"
    script.write_text(_STRICT + "".join(block.shell for block in page))
    with _alone() as words:
        process = subprocess.Popen(
            [*words, "bash", str(script)],
            cwd=folder,
            env=_environment(models, tools),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines: list[str] = []
        listener = threading.Thread(target=_listen, args=(process, lines))
        listener.start()
        has_leftovers = False
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            has_leftovers = _end(process, listener)
    return Outcome(code, _by_block(lines), has_leftovers)


def _listen(process: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout as said:
        lines.extend(line.rstrip("\n") for line in said)


def _end(process: "subprocess.Popen[str]", listener: threading.Thread) -> bool:
    """End the shell's process group; whether there was anything left of it."""
    has_leftovers = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            has_leftovers = True
        listener.join(END_S)  # until no process holds the output any more
    process.wait()
    return has_leftovers


def _by_block(lines: Sequence[str]) -> dict[int, tuple[str, ...]]:
    said: dict[int, list[str]] = {}
    at = 0
    for line in lines:
        if line.startswith(MARK):
            at = int(line.removeprefix(MARK))
            said[at] = []
        elif line:
            said.setdefault(at, []).append(line)
    return {number: tuple(texts) for number, texts in said.items()}


@contextmanager
def _alone() -> Iterator[Sequence[str]]:
    """Words to run a command behind so that a page's ports are free: a network of its own where
    that may be had, else one page at a time."""
    if has_network():
        yield (*_NETWORK, *_LOOPBACK)
        return
    with FileLock(Path(tempfile.gettempdir()) / "slipstream-pages.lock"):
        yield ()


@cache
def has_network() -> bool:
    if which("unshare") is None or which("ip") is None:
        return False
    words = [*_NETWORK, *_LOOPBACK, "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _environment(models: Path, tools: Path) -> dict[str, str]:
    """The model, nothing else that is kept, and no index: packages that are installed are there."""
    programs = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
    packages = [os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")]
    return {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(filter(None, packages)),
        "SLIPSTREAM_CACHE": str(models),
        "SLIPSTREAM_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of --build-isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
