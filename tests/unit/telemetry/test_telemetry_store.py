"""A store that is watched is the store it was, and its operations are timed and told of."""

import asyncio
import contextvars

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from slipstream.core.errors import SessionBusy, SessionNotFound, Unavailable
from slipstream.state.record import SessionUpdate
from slipstream.telemetry import catalog
from slipstream.telemetry.request_span import MAX_STORED
from slipstream_router.watched_store import MEMORY, WatchedStore
from support.state.session_stores import InMemory, begins, claim, held, opened
from support.telemetry.listening import Listener, parent_id
from support.telemetry.watched_rounds import UNSAMPLED, Watched

NONE = 0
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
    """A watched store, and what is heard of it within a request and without."""

    def __init__(self, carrier=None):
        self.heard = Listener()
        self.asked = Watched(self.heard.telemetry, NONE, carrier)
        self.slow = Slow(InMemory().store, self.asked.clock)
        self.watched = WatchedStore(
            self.slow, self.heard.telemetry.instruments, system=MEMORY, clock=self.asked.clock
        )

    async def for_the_request(self, work):
        """Do it in a task that is about the request."""

        async def about():
            self.asked.request.become_current()
            return await work

        return await asyncio.get_running_loop().create_task(
            about(), context=contextvars.copy_context()
        )

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
    ("error", "outcome", "kind"),
    [
        (Unavailable("it is away"), "Unavailable", "Unavailable"),
        (OSError("x"), "other", "OSError"),
        (asyncio.CancelledError(), "other", "Cancelled"),
    ],
)
async def test_an_error_passes_and_is_the_outcome(error, outcome, kind):
    store = Store()
    store.slow.error = error
    with pytest.raises(type(error)):
        await store.for_the_request(store.watched.acquire(begins()))
    assert store.counts() == {("acquire", outcome): 1}
    span = store.heard.span("session.acquire")
    is_failed = kind != "Cancelled"
    assert span.status.status_code is (StatusCode.ERROR if is_failed else StatusCode.UNSET)
    assert span.attributes["error.type"] == kind


async def test_the_first_operations_of_a_request_have_spans_and_the_one_that_ends_it():
    store = Store()

    async def request():
        lease = await held(store.watched, begins())
        await store.watched.append(lease, opened(5, 6))
        for start in range(2, 2 * MAX_STORED):
            await store.watched.append(lease, SessionUpdate(start, (start,)))
            await store.watched.renew(lease)
        await store.watched.release(lease, **NOWHERE)

    await store.for_the_request(request())
    store.asked.request.end()
    *spans, root = store.heard.spans()
    names = [span.name for span in spans]
    assert (names[:2], names[-1]) == (["session.acquire", "session.append"], "session.release")
    assert len(spans) == MAX_STORED + 1
    for span in spans:
        operation = span.name.removeprefix("session.")
        said = {"db.system.name": "memory", "db.operation.name": operation}
        assert dict(span.attributes) == said
        assert span.kind is SpanKind.INTERNAL  # it is in this process
        assert parent_id(span) == root.context.span_id
        assert span.end_time - span.start_time == 3 * 10**9


@pytest.mark.parametrize("why", ["no request", "unsampled"])
async def test_without_a_traced_request_operations_are_timed_and_have_no_span(why):
    store = Store(UNSAMPLED if why == "unsampled" else None)
    work = everything(store.watched)
    await (store.for_the_request(work) if why == "unsampled" else work)
    assert store.heard.spans() == []
    assert store.counts()["acquire", "ok"] == 2


async def test_two_requests_at_once_have_their_own_operations():
    one, other = Store(), Store()
    leases = await asyncio.gather(
        one.for_the_request(held(one.watched, begins())),
        other.for_the_request(held(one.watched, begins(session_id="other"))),
    )
    assert len({lease.session_id for lease in leases}) == 2
    assert len(one.heard.spans()) == len(other.heard.spans()) == 1
