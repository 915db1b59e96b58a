"""Opens the client that the options ask for, showing what it waits for."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slipstream.cli.options import DEFAULT_TARGET, EngineFlags, PlaceFlags, RouterFlags
from slipstream.cli.progress import bars
from slipstream.config import usually

if TYPE_CHECKING:
    from slipstream.client import Client

# A thread that waits for the others of a product soon sleeps. Where two of them meet on one core,
# one that spins keeps the core from the one that it waits for: with OpenMP's own 300,000 rounds a
# start took 17 to 35 s instead of 6 s. OpenMP reads this once, when torch loads.
_SHORT_SPINS = {"GOMP_SPINCOUNT": "3000"}


def open_client(place: PlaceFlags) -> "Client":
    """A client to close: of the router, if one is named, otherwise of engines in this process."""
    return _open_remote(place.router) if place.is_remote else open_embedded(place.engine)


def open_embedded(flags: EngineFlags, **changes: str) -> "Client":
    """Fetch the models that are not here yet, load them and return a client to close."""
    from slipstream.client import Client

    with fetched(flags, **changes) as options:
        return Client.embedded(**options)


@contextmanager
def fetched(flags: EngineFlags, **changes: str) -> Iterator[dict[str, Any]]:
    """The options of engines whose models have been fetched; loading them is shown as well."""
    from slipstream.models.store.resolve import resolve

    options: dict[str, Any] = flags.given() | changes
    target, draft = options.get("target", DEFAULT_TARGET), options.get("draft", "")
    with bars() as progress:
        resolve(target, progress=progress)
        if draft.startswith("vanilla:"):
            resolve(draft.removeprefix("vanilla:"), progress=progress)
        progress.step(f"loading {target}")
        _import_engines()
        yield options


def _import_engines() -> None:
    """Import all that computes, without the garbage collector.

    It would walk some 100,000 objects again and again, here and in every later collection. They
    stay until the process ends, so it is told to leave them alone.
    """
    if "torch" in sys.modules:
        return
    shorten_spins()
    gc.disable()
    try:
        import_module("slipstream.client.embedded")
    finally:
        gc.freeze()
        gc.enable()


def shorten_spins() -> None:
    """Have idle threads sleep soon. For a command that is about to import torch."""
    usually(_SHORT_SPINS)


def remote_options(flags: RouterFlags) -> dict[str, Any]:
    """How a router is spoken to, as either client takes it."""
    from slipstream.rpc.security import ClientTls

    files = (flags.tls_ca, flags.tls_cert, flags.tls_key)
    is_special = any(files) or flags.tls_name is not None
    tls = ClientTls(*files, flags.tls_name) if is_special else flags.tls or None
    return {"token": flags.token(), "tls": tls, "model": flags.model}


def _open_remote(flags: RouterFlags) -> "Client":
    from slipstream.client import Client

    assert flags.router is not None
    return Client(flags.router, **remote_options(flags))
