"""Files of the package that one request executes: `python tests/executed_files.py embedded`.

A file counts when one of its functions is called between a request and its answer. Imports, loading
and generated code do not count. `distributed` has client, router, target and draft on loopback.
"""

import asyncio
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

import fleet
from slipstream.client import AsyncClient, Mode, SpeculationOptions

PACKAGE = Path(__file__).resolve().parent.parent / ".dev" / "slipstream"
FORCED = SpeculationOptions(mode=Mode.FORCED)


class Recorder:
    """Records the files whose functions are called, in this thread and in later ones."""

    def __init__(self) -> None:
        """Begin to record."""
        self.files: set[str] = set()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_filename in self.files:
            return
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        is_ours = code.co_filename.startswith(str(PACKAGE)) and "_pb2" not in code.co_filename
        if is_ours and is_function and not _is_importing(frame):
            self.files.add(code.co_filename)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


async def executed_files(way: str, folder: Path) -> list[str]:
    """Return the files that a request executes, on tiny models that are saved in `folder`."""
    recorder = Recorder()
    target = fleet.save_models(folder)
    glide = str(fleet.glide_of(target))

    async def generate(client: AsyncClient) -> list[str]:
        recorder.files.clear()
        await client.generate("the quick brown fox", max_tokens=16, speculation=FORCED)
        return sorted(str(Path(path).relative_to(PACKAGE)) for path in recorder.files.copy())

    if way == "embedded":
        async with AsyncClient.embedded(str(target), glide, dtype="float32") as client:
            return await generate(client)
    workers = fleet.target_worker(target), fleet.draft_worker(glide, target)
    async with fleet.running(*workers), fleet.routed(workers[:1], workers[1:]) as client:
        return await generate(client)


def main(way: str) -> None:
    """Print the files, one a line; `way` is `embedded` or `distributed`."""
    with tempfile.TemporaryDirectory() as folder:
        files = asyncio.run(executed_files(way, Path(folder)))
    sys.stdout.write("".join(f"{file}\n" for file in files))


if __name__ == "__main__":
    main(*sys.argv[1:])
