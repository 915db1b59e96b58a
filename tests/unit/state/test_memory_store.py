"""Laws of sessions in memory that no other store has: they need no loop, and make room."""

import gc
import tracemalloc

from slipstream.core.errors import SessionNotFound
from slipstream.core.inline import finished
from slipstream.state.store import Bounds, SessionUpdate
from support.state.session_stores import InMemory, begins, claim, opened


class Place:
    """A store for three sessions, unless bounds say otherwise, without an event loop."""

    def __init__(self, **bounds):
        self._place = InMemory(Bounds(lease_s=60.0, **{"max_sessions": 3, **bounds}))
        self.store = self._place.store

    def passes(self, seconds):
        finished(self._place.passes(seconds))

    def holds(self, name, num_tokens=2, **rest):
        lease = finished(self.store.acquire(begins(session_id=name, **rest))).lease
        finished(self.store.append(lease, opened(*range(70_000, 70_000 + num_tokens))))
        return lease

    def says(self, name, num_tokens=2, **rest):
        finished(self.store.release(self.holds(name, num_tokens, **rest), target=None, draft=None))

    def knows(self, name, owner="ann"):
        asked = claim(session_id=name, digest="another", owner=owner)
        try:
            finished(self.store.acquire(asked))
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


def test_a_token_takes_little_more_than_four_bytes():
    place, num_tokens = Place(max_sessions=100), 8192
    place.says("first", num_tokens)
    gc.collect()
    tracemalloc.start()
    for number in range(20):
        place.says(f"s{number}", num_tokens)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 20 * (5 * num_tokens + 3000)


def test_sessions_take_no_more_bytes_than_they_may_but_for_those_in_use():
    place = Place(max_sessions=100, max_sessions_bytes=110_000)
    runs = place.holds("a", 8000, ttl_s=900.0)
    for number, name in enumerate("bcdef"):
        place.says(name, 8000, ttl_s=100.0 + number)
    assert place.known("abcdef") == "aef"
    finished(place.store.append(runs, SessionUpdate(8000, tuple(range(30_000)))))
    assert place.known("abcdef") == "a"
    finished(place.store.release(runs, target=None, draft=None))
    place.says("g", ttl_s=1000.0)
    assert place.known("ag") == "g"


def test_a_key_with_many_sessions_or_large_ones_pushes_out_its_own_alone():
    for bounds, num_tokens in (({"max_sessions": 6}, 2), ({"max_sessions_bytes": 200_000}, 8000)):
        place = Place(**{"max_sessions": 100, **bounds})
        place.says("old", num_tokens, owner="bob", ttl_s=100.0)
        place.says("young", num_tokens, owner="bob", ttl_s=200.0)
        for number in range(50):
            place.says(f"flood{number}", num_tokens, ttl_s=900.0)
        for number in range(8):
            place.holds(f"run{number}", num_tokens, ttl_s=900.0)
        assert place.knows("old", "bob")
        assert place.knows("young", "bob")
