"""Opens the embedded engine that the options ask for, showing what it waits for."""

from typing import TYPE_CHECKING

from slipstream.cli.options import EngineFlags
from slipstream.cli.progress import bars

if TYPE_CHECKING:
    from slipstream.client import Client


def open_client(flags: EngineFlags) -> "Client":
    """Fetch the models that are not here yet, load them and return a client to close."""
    from slipstream.client import Client
    from slipstream.models.store.resolve import resolve

    with bars() as progress:
        resolve(flags.target, progress=progress)
        if flags.draft.startswith("vanilla:"):
            resolve(flags.draft.removeprefix("vanilla:"), progress=progress)
        progress.step(f"loading {flags.target}")
        return Client.embedded(
            flags.target,
            flags.draft,
            dtype=flags.dtype,
            numerics=flags.numerics,
            threads=flags.threads,
            device=flags.device,
        )
