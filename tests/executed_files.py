"""Files of the package that one request executes: `python tests/executed_files.py embedded`.
A file counts when one of its functions is called between a request and its answer. Imports, loading
and generated code do not count. `distributed` has client, router, target and draft on loopback."""

import asyncio
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from slipstream.client import AsyncClient, Mode, SpeculationOptions
from support.commands import ROOT
from support.services import fleet

PACKAGES = (f"{ROOT}/slipstream/", f"{ROOT}/services/")


class Recorder:
    """Records the files whose functions are called, in this thread and in later ones."""

    def __init__(self) -> None:
        """See the calls of all threads; what they call is kept while `is_on`."""
        self.files: set[str] = set()
        self.is_on = False
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_on or event != "call":  # threads call while the interpreter ends, too
            return
        path, is_function = frame.f_code.co_filename, frame.f_code.co_flags & inspect.CO_OPTIMIZED
        is_ours = path.startswith(PACKAGES) and "_pb2" not in path
        if is_ours and is_function and not _is_importing(frame):
            self.files.add(path)


def _is_importing(frame: FrameType | None) -> bool:
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGES):
            return True
        frame = frame.f_back
    return False


async def executed_files(way: str, folder: Path) -> list[str]:
    """Return the files that a request executes, on tiny models that are saved in `folder`."""
    recorder = Recorder()
    target = fleet.save_models(folder)
    glide = str(fleet.glide_of(target))

    async def generate(client: AsyncClient) -> list[str]:
        forced = SpeculationOptions(mode=Mode.FORCED)
        recorder.is_on = True
        await client.generate("the quick brown fox", max_tokens=16, speculation=forced)
        recorder.is_on = False
        return sorted(str(Path(path).relative_to(ROOT)) for path in recorder.files)

    if way == "embedded":
        async with AsyncClient.embedded(str(target), glide, dtype="float32") as client:
            return await generate(client)
    workers = fleet.target_worker(target), fleet.draft_worker(glide, target)
    async with fleet.running(*workers), fleet.routed(workers[:1], workers[1:]) as client:
        return await generate(client)


def main(way: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = asyncio.run(executed_files(way, Path(folder)))
    sys.stdout.write("".join(f"{file}\n" for file in files))


if __name__ == "__main__":
    main(*sys.argv[1:])
