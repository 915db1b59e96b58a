"""A store that is watched is the store it was, and its operations are timed."""

import asyncio

import pytest

from slipstream.core.errors import SessionBusy, SessionNotFound, Unavailable
from slipstream.telemetry import catalog
from slipstream_router.watched_store import WatchedStore
from support.models.hand_clock import HandClock
from support.state.session_stores import InMemory, begins, claim, held, opened
from support.telemetry.listening import Listener

NOWHERE = {"target": None, "draft": None}


class Slow:
    """A store each of whose operations takes three seconds, and may fail."""

    def __init__(self, store, clock):
        self._store = store
        self._clock = clock
        self.error = None

    def __getattr__(self, name):
        async def operation(*args, **kwargs):
            self._clock.passes(3)
            if self.error is not None:
                raise self.error
            return await getattr(self._store, name)(*args, **kwargs)

        return operation


class Store:
    """A watched store, and what is heard of it."""

    def __init__(self):
        self.heard, clock = Listener(), HandClock()
        self.slow = Slow(InMemory().store, clock)
        self.watched = WatchedStore(self.slow, self.heard.telemetry.instruments, clock=clock)

    def counts(self):
        """How many operations of each kind ended how."""
        points = self.heard.points(catalog.STORE_DURATION)
        assert all(at.sum == 3 * at.count for at in points.values())
        return {tuple(value for _, value in key): at.count for key, at in points.items()}


async def everything(store):
    """Every operation there is, and what came of each."""
    lease = await held(store, begins())
    said = [await store.append(lease, opened(5, 6, 7)), await store.renew(lease)]
    for refused in (claim("r2"), claim(session_id="another")):
        with pytest.raises((SessionBusy, SessionNotFound)) as refusal:
            await store.acquire(refused)
        said.append(str(refusal.value))
    said += [await store.release(lease, target="t:1", draft="d:1"), await store.count()]
    said.append(await store.acquire(claim()))
    said.append(await store.release(said[-1].lease, **NOWHERE))
    said += [await store.delete("chat", "ann"), await store.count(), await store.aclose()]
    return said


async def test_a_watched_store_does_and_says_what_the_store_does():
    assert await everything(Store().watched) == await everything(InMemory().store)


async def test_every_operation_is_timed_by_how_it_ended():
    store = Store()
    await everything(store.watched)
    assert store.counts() == {
        ("acquire", "ok"): 2,
        ("acquire", "SessionBusy"): 1,
        ("acquire", "SessionNotFound"): 1,
        ("append", "ok"): 1,
        ("renew", "ok"): 1,
        ("release", "ok"): 2,
        ("delete", "ok"): 1,
    }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unavailable("it is away"), "Unavailable"),
        (OSError("x"), "other"),
        (asyncio.CancelledError(), "other"),
    ],
)
async def test_an_error_passes_and_is_the_outcome(error, outcome):
    store = Store()
    store.slow.error = error
    with pytest.raises(type(error)):
        await store.watched.acquire(begins())
    assert store.counts() == {("acquire", outcome): 1}
