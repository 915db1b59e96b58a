"""Clients by the options of a command, with bars while models are fetched and loaded."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.cli.options import DEFAULT_TARGET, EngineFlags, PlaceFlags, RouterFlags
from slipstream.cli.progress import Bars, bars
from slipstream.client import AsyncClient, Client
from slipstream.config import set_default_variables
from slipstream.core.policy.options import EAGLE, VANILLA
from slipstream.rpc.security import ClientTls

if TYPE_CHECKING:
    from slipstream.client.embedded import Embedded

_AnyClient = TypeVar("_AnyClient", AsyncClient, Client)
_ENGINES = "slipstream.client.embedded"
# A thread that waits for the others of a product soon sleeps. Where two of them meet on one core,
# one that spins keeps the core from the one that it waits for: with OpenMP's own 300,000 rounds a
# start took 17 to 35 s instead of 6 s. OpenMP reads this once, when torch loads.
_SHORT_SPINS = {"GOMP_SPINCOUNT": "3000"}


def open_client(kind: type[_AnyClient], place: PlaceFlags) -> _AnyClient:
    """Return a client of the router, if one is named, else of engines that are loaded here."""
    if place.router.router is not None:
        return kind(place.router.router, **remote_options(place.router))
    with _fetched(place.engine) as options:
        return kind.embedded(**options)


def open_engines(flags: EngineFlags) -> "Embedded":
    """Return engines in this process that keep no prompts: each request reads its own."""
    with _fetched(flags) as options:
        from slipstream.client.embedded import Embedded
        from slipstream.client.engine import EngineOptions

        names = {"target": DEFAULT_TARGET, "draft": "glide", "profile": None}
        named = {name: options.pop(name, default) for name, default in names.items()}
        return Embedded.load(**named, options=EngineOptions(**options, max_cached_bytes=0))


@contextmanager
def _fetched(flags: EngineFlags) -> Iterator[dict[str, Any]]:
    """Give the options of engines whose models have been fetched, while a bar shows loading."""
    options: dict[str, Any] = dict(flags.given())
    target = options.get("target", DEFAULT_TARGET)
    with bars() as progress:
        fetch(target, options.get("draft", ""), progress)
        progress.step(f"loading {target}")
        _import_engines()
        yield options


def fetch(target: str, draft: str, progress: Bars) -> None:
    """Fetch a target, and a draft that is a model or a head, unless they are on this machine."""
    from slipstream.models.format.resolve import resolve, resolve_head

    resolve(target, progress=progress)
    if draft.startswith(VANILLA):
        resolve(draft.removeprefix(VANILLA), progress=progress)
    elif draft.startswith(EAGLE):
        resolve_head(draft.removeprefix(EAGLE), progress=progress)


def _import_engines() -> None:
    """Import all that computes, without the garbage collector.

    It would walk all their objects again and again, here and in every later collection. They stay
    until the process ends, so it is made to leave them alone.
    """
    if _ENGINES in sys.modules:
        return
    shorten_spins()
    gc.disable()
    try:
        import_module(_ENGINES)
    finally:
        gc.freeze()
        gc.enable()


def shorten_spins() -> None:
    """Make idle threads of torch sleep soon, where a command imports it."""
    set_default_variables(_SHORT_SPINS)


def remote_options(flags: RouterFlags) -> dict[str, Any]:
    """Return how a router is reached, as either client takes it."""
    files = (flags.tls_ca, flags.tls_cert, flags.tls_key)
    is_special = any(files) or flags.tls_name is not None
    tls = ClientTls(*files, flags.tls_name) if is_special else flags.tls or None
    return {"token": flags.token(), "tls": tls, "model": flags.model}
