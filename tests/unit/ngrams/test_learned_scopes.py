"""Laws of memories of several scopes: apart from each other, within one bound, for a time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.ngrams import scopes
from slipstream.ngrams.scopes import LearnedScopes
from support.models.hand_clock import HandClock

TTL_S = 400.0


def made(max_tokens=10_000, clock=None):
    return LearnedScopes(max_tokens, ttl_s=TTL_S, clock=clock or HandClock())


def test_no_text_of_one_scope_is_proposed_in_another():
    memories = made()
    memories.learn("alice", range(20))
    assert memories.texts("alice").after((5, 4, 3)) == (6, 3)
    assert memories.texts("bob").after((5, 4, 3)) is None


def test_the_scope_that_has_most_makes_room_and_one_with_little_loses_nothing():
    memories = made(max_tokens=1000)
    memories.learn("small", range(5000, 5100))
    for start in range(0, 4000, 50):
        memories.learn("large", range(start, start + 50))
    assert memories.num_tokens == sum(memories.texts(at).num_tokens for at in ("small", "large"))
    assert memories.texts("small").after((5009, 5008, 5007)) == (5010, 3)
    assert memories.texts("large").after((3989, 3988, 3987)) == (3990, 3)
    assert memories.texts("large").after((9, 8, 7)) is None
    for number in range(5):
        memories.learn(f"new {number}", range(100))
    assert memories.texts("small").num_tokens == 101
    for number in range(5):
        assert memories.texts(f"new {number}").after((98, 97, 96)) == (99, 3)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 5), max_size=80))),
)
def test_all_together_are_bounded_and_what_went_is_counted(max_tokens, texts):
    clock = HandClock()
    memories = made(max_tokens, clock)
    for scope, text in texts:
        memories.learn(scope, text)
        if len(text) > 70:
            clock.now += TTL_S / 4
            memories.expire()
        held = sum(memories.texts(at).num_tokens for at in "abcd")
        assert memories.num_tokens == held <= max_tokens


def test_a_text_is_forgotten_when_its_time_is_up_and_its_scope_with_it():
    clock = HandClock()
    memories = made(clock=clock)
    memories.learn("alice", range(20))
    for _ in range(399):
        clock.now += 1
        memories.expire()
    assert memories.texts("alice").after((5, 4, 3)) == (6, 3)
    clock.now += 1
    memories.expire()
    assert (memories.num_tokens, memories.num_evicted) == (0, 21)
    assert memories.texts("alice").after((5, 4, 3)) is None


def test_a_text_that_is_learned_again_counts_as_new():
    clock = HandClock()
    memories = made(clock=clock)
    for _ in range(10):
        memories.learn("alice", range(20))
        clock.now += TTL_S / 4
        memories.expire()
    assert memories.texts("alice").after((5, 4, 3)) == (6, 3)


def test_scopes_are_bounded_and_the_least_recently_used_goes(monkeypatch):
    monkeypatch.setattr(scopes, "MAX_SCOPES", 3)
    memories = made()
    for name in ("a", "b", "c", "a", "d"):
        memories.learn(name, range(20))
    assert memories.texts("a").num_tokens == 21
    assert memories.num_tokens == 63
    assert memories.texts("b").num_tokens == 0
