"""A store that is watched is the store it was, and its operations are timed."""

import pytest

from slipstream.core.errors import SessionBusy, SessionNotFound
from slipstream.telemetry import catalog
from slipstream_router.request_telemetry import WatchedStore
from support.state.session_stores import InMemory, begins, claim, held, opened
from support.telemetry.listening import Listener

NOWHERE = {"target": None, "draft": None}


async def everything(store):
    """Do every operation there is; return what came of each."""
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


async def test_a_watched_store_does_what_the_store_does_and_times_it_by_how_it_ended():
    heard = Listener()
    clock = iter(range(0, 300, 3)).__next__
    watched = WatchedStore(InMemory().store, heard.telemetry.instruments, clock=clock)
    assert await everything(watched) == await everything(InMemory().store)
    points = heard.points(catalog.STORE_DURATION)
    assert all(point.sum == 3 * point.count for point in points.values())
    assert {tuple(value for _, value in key): point.count for key, point in points.items()} == {
        ("acquire", "ok"): 2,
        ("acquire", "SessionBusy"): 1,
        ("acquire", "SessionNotFound"): 1,
        ("append", "ok"): 1,
        ("renew", "ok"): 1,
        ("release", "ok"): 2,
        ("delete", "ok"): 1,
    }
