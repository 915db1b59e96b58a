"""Whether and when a request that broke is sent again, and where routers are; no network."""

import pytest

from slipstream.client.call import ClientCall
from slipstream.client.connection import router_target
from slipstream.client.retries import Retries, RetryTimeouts, StreamProgress
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.request import Ask, Generation, SessionRef
from slipstream.core.request.results import Chunk, PromptInfo

TIMEOUTS = RetryTimeouts(unanswered_s=1.0, begun_s=4.0, first_pause_s=0.125, longest_pause_s=1.0)
PROMPT = PromptInfo("id", "model", 0, 3)


class Clock:
    """Stands still, but for what is waited."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pauses(self, tries: Retries) -> list[float]:
        """All that there are, one failing call at once after another."""
        found = []
        while (pause_s := tries.pause_s()) is not None:
            found.append(pause_s)
            self.now_s += pause_s
        return found


def tries(timeout_s=None, timeouts=TIMEOUTS, draw=0.0):
    clock = Clock()
    return Retries(timeout_s, timeouts, clock=clock, draw=lambda: draw), clock


def test_pauses_double_up_to_the_longest_while_there_is_patience():
    tried, clock = tries()
    clock.now_s += 1000  # it counts from the break, not from the start
    assert clock.pauses(tried) == [0.125, 0.25, 0.5]
    for _ in range(3):  # what is new begins it all again
        tried.progressed()
        assert clock.pauses(tried) == [0.125, 0.25, 0.5, 1, 1, 1]


def test_chance_cuts_a_pause_by_up_to_a_half():
    assert [tries(draw=draw)[0].pause_s() for draw in (0, 0.5, 1)] == [0.125, 0.09375, 0.0625]


def test_no_pause_ends_after_the_deadline():
    tried, clock = tries(timeout_s=2.0)
    tried.progressed()
    clock.now_s += 1.5
    assert clock.pauses(tried) == [0.125, 0.25]
    assert tried.left_s() == 0.125


@pytest.mark.parametrize(("create", "num_pauses"), [(True, 3), (False, 6)])
def test_the_next_turn_of_a_session_has_the_patience_of_what_has_begun(create, num_pauses):
    tried, clock = tries()
    generation = Generation("hello", session=SessionRef("chat", create=create))
    StreamProgress(ClientCall(generation, None), tried)
    assert len(clock.pauses(tried)) == num_pauses


def test_a_chunk_without_tokens_is_no_progress():
    tried, clock = tries()
    generation = Generation("hello", Ask(max_tokens=20, request_id="id"))
    first = StreamProgress(ClientCall(generation, 5.0), tries(5.0)[0])
    stream = StreamProgress(first.next_call(), tried)
    clock.now_s += tried.pause_s()
    stream.received(Chunk("", (), prompt=PROMPT))
    assert clock.pauses(tried) == [0.25, 0.5]
    stream.received(Chunk("a", (1,)))
    assert len(clock.pauses(tried)) == 6


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("router:50051", "router:50051"),
        ("dns:///router:50051", "dns:///router:50051"),
        ("unix:/run/a,b", "unix:/run/a,b"),
        ("10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ("10.0.0.1:1, 10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ("[::1]:1,[fe80::2]:2", "ipv6:[::1]:1,[fe80::2]:2"),
        ("ipv4:10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
    ],
)
def test_several_addresses_are_one_target(address, target):
    assert router_target(address) == target


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("a.example:1,b.example:1", "dns:///NAME:PORT"),
        ("10.0.0.1:1,localhost:1", "dns:///NAME:PORT"),
        ("10.0.0.1:1,[::1]:1", "all IPv4 or all IPv6"),
        ("10.0.0.1:1,", "must be HOST:PORT"),
        ("10.0.0.1:1,10.0.0.2", "must be HOST:PORT"),
    ],
)
def test_addresses_that_can_not_be_together_are_refused(address, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        router_target(address)
