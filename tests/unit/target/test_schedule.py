"""Who joins the next step of a target: distributions of the queue, for any work that may come."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.verifying.meter import StepBudget
from slipstream.verifying.schedule import Schedule

WORK = st.tuples(st.integers(1, 90), st.integers(0, 40))
READY = st.tuples(st.just(1), st.integers(0, 12))
BUDGET = st.builds(StepBudget, max_tokens=st.integers(1, 96), tile=st.sampled_from([1, 8, 32]))


@dataclass(eq=False)
class Request:
    """Tokens and nodes that are still to be computed."""

    key: object
    num_pending: int
    num_nodes: int = 0
    num_keys: int = 0


@dataclass
class Target:
    """Runs steps, and checks what holds in every one of them."""

    budget: StepBudget
    schedule: Schedule = field(init=False)
    left: dict[int, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.budget)

    def add(self, key: int, num_pending: int, num_nodes: int = 0) -> None:
        self.left[key] = Request(key, num_pending, num_nodes)
        self.schedule.add(self.left[key])

    def step(self, *, has_company: bool = False) -> dict[int, int]:
        """Tokens by request."""
        rows = {}
        for at in self.schedule.next(has_company=has_company):
            request = at.request
            assert 1 <= at.num_pending <= request.num_pending
            assert at.is_last == (at.num_pending == request.num_pending)
            assert request.key not in rows
            assert self.left[request.key] is request
            rows[request.key] = at.num_pending + (request.num_nodes if at.is_last else 0)
            assert at.num_tokens == rows[request.key]
            request.num_pending -= at.num_pending
            request.num_keys += at.num_pending
            if at.is_last:
                del self.left[request.key]
        assert sum(rows.values()) <= self.budget.max_tokens or len(rows) == 1
        assert len(self.schedule) == len(self.left)
        return rows


@settings(deadline=None)
@given(BUDGET, st.lists(WORK, min_size=1, max_size=12), st.booleans())
def test_everything_is_computed_once_within_the_budget(budget, works, has_company):
    target = Target(budget)
    for key, work in enumerate(works):
        target.add(key, *work)
    while target.left:
        assert target.step(has_company=has_company)
    assert target.step() == {}


@settings(deadline=None)
@given(BUDGET, st.integers(1, 40), st.integers(1, 6))
def test_no_session_waits_longer_than_its_turn(budget, num_sessions, num_rows):
    target = Target(budget)
    waited = dict.fromkeys(range(num_sessions), 0)
    for key in waited:
        target.add(key, 1, num_rows - 1)
    fitting = max(budget.max_tokens // num_rows, 1)
    for _ in range(3 * num_sessions):
        done = target.step()
        for key in waited:
            waited[key] = 0 if key in done else waited[key] + 1
        assert max(waited.values()) < -(-num_sessions // fitting)
        for key in done:
            target.add(key, 1, num_rows - 1)


@settings(deadline=None)
@given(BUDGET, st.lists(READY, max_size=40), st.lists(st.integers(50, 400), min_size=1, max_size=4))
@example(StepBudget(max_tokens=11, tile=8), [(1, 5), (1, 7), (1, 10), (1, 10)], [50])
def test_prompts_get_a_few_rows_every_other_step_whatever_runs(budget, sessions, prompts):
    """Up to their last tokens, with which they are running sessions and take their turn as such."""
    target = Target(budget)
    for key, (pending, nodes) in enumerate(sessions):
        target.add(key, pending, nodes)
    for key, num_tokens in enumerate(prompts, start=100):
        target.add(key, num_tokens)
    few, last = budget.few_tokens, budget.few_tokens
    for _ in range(60):
        left = sum(at.num_pending - 1 for key, at in target.left.items() if key >= 100)
        done = target.step()
        rows = sum(rows for key, rows in done.items() if key >= 100)
        assert last + rows >= min(few, left)
        last = rows if left else few
        for key, (_, nodes) in enumerate(sessions):
            if key in done:
                target.add(key, 1, nodes)


def test_a_prompt_leaves_room_for_sessions_that_are_not_back_yet():
    target = Target(StepBudget())
    target.add(0, 600)
    assert target.step(has_company=True) == {0: 32}


@settings(deadline=None)
@given(st.integers(1, 224), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_chunk_slows_a_step_down_as_far_as_allowed_and_ends_where_a_tile_does(rows, costs):
    def seconds(num_rows: int, num_keys: int = 0) -> float:
        tiles = -(-num_rows // 32)
        return 3.0 + sum((costs * 9)[:tiles])

    schedule = Schedule(StepBudget(seconds=seconds))
    schedule.add(Request("session", 1, rows - 1))
    schedule.add(Request("prompt", 10_000))
    scheduled = {at.request.key: at for at in schedule.next()}
    chunk = scheduled["prompt"].num_pending if "prompt" in scheduled else 0
    assert (rows + chunk) % 32 == 0
    assert seconds(rows + chunk) <= 1.8 * seconds(rows)
    after = rows + chunk + 32
    assert after > 256 or seconds(after) > 1.8 * seconds(rows)


MACHINE = st.tuples(st.floats(1e-3, 0.1), st.floats(1e-5, 5e-3), st.floats(0, 3e-6))
"""Seconds of a step, of each of its tokens, and of each key that one of them reads."""


@settings(deadline=None, max_examples=25)
@given(MACHINE, st.floats(0, 0.1), st.lists(READY, max_size=6), st.integers(1, 3))
@example((9e-3, 1e-3, 1e-6), 0.05, [(1, 0)], 2)
def test_prompts_delay_no_step_by_more_than_allowed_or_what_a_few_tokens_take(
    machine, max_delay_s, sessions, num_prompts
):
    """However long their contexts are. They end all the same, and alone they have whole steps."""
    step_s, token_s, key_s = machine

    def seconds(num_tokens: int, num_keys: int) -> float:
        return step_s + token_s * num_tokens + key_s * num_keys

    target = Target(StepBudget(max_delay_s=max_delay_s, seconds=seconds))
    few, longest = target.budget.few_tokens, 900
    for key in range(100, 100 + num_prompts):
        target.add(key, longest)
        target.left[key].num_keys = 7000
    for _ in range(2 * num_prompts * (longest // few + 1)):
        for key, (_, nodes) in enumerate(sessions):
            if key not in target.left:
                target.add(key, 1, nodes)
        prompts = {key: request for key, request in target.left.items() if key >= 100}
        if not prompts:
            break
        # The last token of a prompt is decoded as those of running sessions are.
        before = {key: it.num_keys for key, it in prompts.items() if it.num_pending > 1}
        done = target.step()
        if not sessions:
            assert sum(done.values()) == 256 or not target.left
            continue
        chunk = {key: done[key] for key in done if key in before}
        size = sum(chunk.values())
        assert set(range(len(sessions))) <= set(done), "decoding goes first"
        added_s = sum(count * (token_s + key_s * before[key]) for key, count in chunk.items())
        assert added_s <= max_delay_s * 1.000001 or size <= few
    assert not any(key >= 100 for key in target.left)


def test_a_tree_joins_with_the_last_token_and_is_never_cut():
    target = Target(StepBudget(max_tokens=32))
    target.add(0, 30, 10)
    assert target.step() == {0: 29}
    assert target.step() == {0: 11}


def test_what_is_removed_joins_no_step():
    target = Target(StepBudget())
    target.add(0, 300)
    target.add(1, 300)
    request = target.left.pop(0)
    target.schedule.remove(request)
    assert request not in set(target.schedule)
    target.schedule.remove(request)
    assert list(target.step()) == [1]


@pytest.mark.parametrize("name", ["max_tokens", "tile"])
def test_a_budget_of_nothing_is_refused(name):
    with pytest.raises(InvalidRequest, match=name):
        StepBudget(**{name: 0})


def test_free_rows_are_those_that_the_measured_cost_calls_free():
    def seconds(rows: int, num_keys: int) -> float:
        return 1.0 if rows <= 5 else 1.04 if rows <= 40 else 2.0

    budget = StepBudget(max_tokens=64, tile=8, seconds=seconds)
    assert [budget.num_free(rows) for rows in (0, 1, 40, 41, 64, 90)] == [40, 39, 0, 23, 0, 0]
