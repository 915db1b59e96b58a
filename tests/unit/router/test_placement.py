"""Laws of placement: who fits, who is least loaded, who is spared, and who holds the keys."""

import pytest

from slipstream_router.replicas.placement import (
    DraftView,
    Layout,
    TargetView,
    best_kind,
    choose_draft,
    choose_target,
    misfit,
)

LAYOUT = Layout(30, 3, 64)


def target(address="t1:1", **changes):
    fields = {
        "model_id": "small",
        "tokenizer_hash": "t" * 64,
        "vocab_size": 100,
        "layout": LAYOUT,
        **changes,
    }
    return TargetView(address, **fields)


def draft(address="d1:1", **changes):
    fields = {
        "kind": "glide",
        "tokenizer_hash": "t" * 64,
        "vocab_size": 100,
        "target_model_id": "small",
        "target_layout": LAYOUT,
        **changes,
    }
    return DraftView(address, **fields)


def chosen(views, excluded=frozenset(), **more):
    """The address of the target for a request of the small model."""
    found = choose_target(views, "small", excluded=excluded, **more)
    return None if found is None else found.address


PAIR = [target("a:1"), target("b:1", num_requests=9)]
CHOICES = {
    "nobody": ([], {}, None),
    "another model": ([target(model_id="large")], {}, None),
    "the least loaded": ([target("a:1", num_requests=2), target("b:1", num_requests=1)], {}, "b:1"),
    "the longest idle": ([target("a:1", last_began=4.0), target("b:1", last_began=3.0)], {}, "b:1"),
    "keys of a full one": ([target("a:1", num_requests=1000)], {"sticky": "a:1"}, "a:1"),
    "keys of one that is gone": ([target("b:1")], {"sticky": "a:1"}, "b:1"),
    "keys of one that failed": (PAIR, {"sticky": "a:1", "excluded": {"a:1"}}, "b:1"),
    "all failed": (PAIR, {"excluded": {"a:1", "b:1"}}, None),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_target_is_chosen_by_model_failures_keys_and_load(name):
    views, more, address = CHOICES[name]
    assert chosen(views, **more) == address


@pytest.mark.parametrize(("idlest", "most"), [(0, 8), (1, 10), (20, 48)])
def test_whoever_holds_the_keys_comes_first_until_it_is_crowded(idlest, most):
    for num_requests, address in ((most, "a:1"), (most + 1, "c:1")):
        numbers = {"a:1": num_requests, "b:1": idlest + 1, "c:1": idlest}
        views = [target(at, num_requests=number) for at, number in numbers.items()]
        assert chosen(views, sticky="a:1") == address


def test_sessions_that_go_on_come_to_a_target_that_was_added():
    running = {"a:1": 60, "b:1": 0}
    holders = ["a:1"] * 60
    for number, holder in enumerate(holders):  # one turn ends, and the session's next one begins
        running[holder] -= 1
        views = [target(at, num_requests=count) for at, count in running.items()]
        holders[number] = chosen(views, sticky=holder)
        running[holders[number]] += 1
    assert running == {"a:1": 43, "b:1": 17}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"target_model_id": "large"}, "target model"),
        ({"tokenizer_hash": "u" * 64}, "tokenizer"),
        ({"target_layout": Layout(30, 3, 128)}, "layout"),
        ({"vocab_size": 101}, "vocabulary"),
    ],
)
def test_a_draft_for_another_target_never_sits_with_this_one(change, part):
    assert part in misfit(target(), draft(**change))
    assert choose_draft([draft(**change)], target(), "glide") is None


def test_what_a_draft_does_not_depend_on_is_not_compared_but_its_kind():
    vanilla = draft(kind="vanilla", target_model_id="", target_layout=None, vocab_size=128)
    ngram = DraftView("d:1", "ngram")
    assert misfit(target(), vanilla) == ""
    assert misfit(target(), ngram) == ""
    assert choose_draft([vanilla, ngram], target(), "glide") is None


def test_drafts_that_failed_are_spared_even_where_they_hold_the_keys():
    drafts = [draft("a:1"), draft("b:1", num_requests=9)]
    chosen = choose_draft(drafts, target(), "glide", sticky="a:1", excluded={"a:1"})
    assert chosen is not None
    assert chosen.address == "b:1"


@pytest.mark.parametrize("had", [0, 1000])
def test_twelve_requests_are_spread_evenly_over_three_drafts_whatever_they_had_before(had):
    started = {"a:1": had, "b:1": had, "c:1": 0}
    last = {"a:1": had, "b:1": had - 1, "c:1": 0}
    for number in range(12):
        views = [draft(at, last_began=began) for at, began in last.items()]
        chosen = choose_draft(views, target(), "glide")
        assert chosen is not None
        started[chosen.address] += 1
        last[chosen.address] = had + 1 + number
    assert started == {"a:1": had + 4, "b:1": had + 4, "c:1": 4}


def test_a_draft_that_reads_keys_is_better_than_one_that_does_not():
    assert best_kind({"ngram", "vanilla", "glide"}) == "glide"
    assert best_kind({"ngram", "vanilla"}) == "vanilla"
    assert best_kind({"ngram"}) is None
