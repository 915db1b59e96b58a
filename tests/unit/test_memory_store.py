"""Laws of sessions in memory that no other store has: they need no loop, and make room."""

from session_stores import InMemory, begins, claim, opened
from slipstream.core.errors import SessionNotFound
from slipstream.core.inline import finished
from slipstream.state.expiries import Expiries
from slipstream.state.record import Bounds


class Place:
    """A store for three sessions, without an event loop."""

    def __init__(self):
        self._place = InMemory(Bounds(lease_s=60.0, max_sessions=3))
        self.store = self._place.store

    def passes(self, seconds):
        finished(self._place.passes(seconds))

    def holds(self, name, **rest):
        lease = finished(self.store.acquire(begins(session_id=name, **rest))).lease
        finished(self.store.append(lease, opened(5, 6)))
        return lease

    def says(self, name, **rest):
        finished(self.store.release(self.holds(name, **rest), target=None, draft=None))

    def knows(self, name):
        try:
            finished(self.store.acquire(claim(session_id=name, digest="another")))
        except SessionNotFound:
            return False
        except Exception:
            return True
        raise AssertionError("another request has the id of one that was")

    def known(self, names):
        return "".join(filter(self.knows, names))


def test_the_session_that_would_be_forgotten_first_goes_first():
    place = Place()
    place.says("a", ttl_s=300.0)
    place.says("b", ttl_s=100.0)
    place.says("c", ttl_s=200.0)
    place.says("d", ttl_s=400.0)
    assert place.known("abcd") == "acd"
    place.says("c", ttl_s=500.0)
    place.says("e", ttl_s=150.0)
    assert place.known("abcde") == "cde"
    assert finished(place.store.count()) == 3


def test_a_session_in_use_does_not_go():
    place = Place()
    for name in "abc":
        place.holds(name, ttl_s=100.0)
    place.says("d", ttl_s=300.0)
    assert place.known("abcd") == "abcd"
    place.says("e", ttl_s=300.0)
    assert place.known("abcde") == "abce"


def test_a_session_whose_holder_is_silent_goes():
    place = Place()
    place.holds("a", ttl_s=100.0)
    place.passes(70.0)
    for name in "bcd":
        place.says(name, ttl_s=100.0)
    assert place.known("abcd") == "bcd"


def test_what_has_run_out_is_not_counted():
    place = Place()
    place.says("a", ttl_s=100.0)
    place.says("b", ttl_s=300.0)
    place.passes(200.0)
    assert finished(place.store.count()) == 1


def test_times_that_move_cost_no_memory():
    expiries = Expiries()
    for number in range(10_000):
        expiries.put("a", float(number))
        expiries.put(f"b{number}", 1.0)
        expiries.discard(f"b{number}")
    assert expiries.first() == (9999.0, "a")
    assert len(expiries._heap) < 200
    expiries.discard("a")
    assert expiries.first() is None
