"""Laws of sessions: begun once, one turn at a time, and nothing that was said is lost."""

import pytest

from slipstream.core.errors import InvalidRequest, SessionBusy, SessionExists, SessionNotFound
from slipstream.core.request import SessionRef
from slipstream.router.app import fences
from slipstream.router.conversations import Bounds, Conversations


class World:
    def __init__(self, **bounds):
        self.now = 1000.0
        self.all = Conversations(
            Bounds(**bounds), clock=lambda: self.now, next_fence=fences(lambda: self.now)
        )

    def say(self, name, prompt, output, *, create=False):
        with self.all.turn(SessionRef(name, create), "small") as conversation:
            conversation.say((*conversation.tokens, *prompt), output)
            return conversation


def test_turns_add_up():
    world = World()
    world.say("a", (1, 2), (3,), create=True)
    assert world.say("a", (4,), (5, 6)).tokens == (1, 2, 3, 4, 5, 6)


def test_a_turn_without_an_answer_was_never_said():
    world = World()
    world.say("a", (1, 2), (3,), create=True)
    assert world.say("a", (4,), ()).tokens == (1, 2, 3)


def test_a_session_whose_first_turn_fails_was_never_begun():
    world = World()
    with pytest.raises(InvalidRequest), world.all.turn(SessionRef("a", True), "small"):
        raise InvalidRequest("no")
    assert len(world.all) == 0
    world.say("a", (1,), (2,), create=True)


def test_what_a_failed_turn_had_sent_stays():
    world = World()
    with pytest.raises(InvalidRequest), world.all.turn(SessionRef("a", True), "small") as at:
        at.say((1, 2), (3,))
        raise InvalidRequest("half way")
    assert world.say("a", (4,), (5,)).tokens == (1, 2, 3, 4, 5)


def test_a_session_begins_once():
    world = World()
    world.say("a", (1,), (2,), create=True)
    with pytest.raises(SessionExists, match="session a exists already"):
        world.say("a", (1,), (2,), create=True)


def test_a_session_that_never_began_is_not_found():
    world = World()
    with pytest.raises(SessionNotFound, match="'a'"):
        world.say("a", (1,), (2,))
    with pytest.raises(SessionNotFound):
        world.all.delete("a")
    with pytest.raises(SessionNotFound):
        world.all.model_of(SessionRef("a"))
    assert world.all.model_of(SessionRef("a", create=True)) is None


def test_a_running_session_refuses_a_second_turn_and_its_end():
    world = World()
    with world.all.turn(SessionRef("a", True), "small") as at:
        at.say((1,), (2,))
        with pytest.raises(SessionBusy):
            world.say("a", (1,), (2,))
        with pytest.raises(SessionBusy):
            world.all.delete("a")
        with pytest.raises(SessionExists):
            world.say("a", (1,), (2,), create=True)
    world.say("a", (3,), (4,))


def test_a_session_stays_with_its_model():
    world = World()
    world.say("a", (1,), (2,), create=True)
    ref = SessionRef("a")
    with (
        pytest.raises(InvalidRequest, match="model small, not large"),
        world.all.turn(ref, "large"),
    ):
        pass
    assert world.all.model_of(ref) == "small"


def test_a_session_unused_for_too_long_is_forgotten_but_a_running_one_is_not():
    world = World(ttl_s=10)
    world.say("a", (1,), (2,), create=True)
    with world.all.turn(SessionRef("b", True), "small") as at:
        at.say((1,), (2,))
        world.now += 11
        assert world.all.model_of(SessionRef("b")) == "small"
        with pytest.raises(SessionNotFound):
            world.say("a", (3,), (4,))
    world.now += 9
    assert world.say("b", (3,), (4,)).tokens == (1, 2, 3, 4)


def test_the_longest_unused_session_makes_room():
    world = World(max_sessions=2)
    for name in "ab":
        world.say(name, (1,), (2,), create=True)
    world.say("a", (3,), (4,))
    world.say("c", (1,), (2,), create=True)
    assert len(world.all) == 2
    with pytest.raises(SessionNotFound):
        world.say("b", (3,), (4,))
    world.say("a", (5,), (6,))


def test_a_running_session_is_never_the_one_to_go():
    world = World(max_sessions=1)
    with world.all.turn(SessionRef("a", True), "small") as at:
        at.say((1,), (2,))
        world.say("b", (1,), (2,), create=True)
    assert world.say("a", (3,), (4,)).tokens == (1, 2, 3, 4)


def test_fences_grow_from_turn_to_turn_over_deletion_and_over_restarts():
    world = World()
    first = world.say("a", (1,), (2,), create=True).fence
    second = world.say("a", (3,), (4,)).fence
    gone = world.all.delete("a").fence
    again = world.say("a", (1,), (2,), create=True).fence
    assert first < second < gone < again
    later = World()
    later.now += 1
    assert later.say("a", (1,), (2,), create=True).fence > again
