"""Laws of breakers: a few failures in a row rest a name, and one request at a time may try it."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.breaker import Attempt, BreakerLimits, Breakers

LIMITS = BreakerLimits(failures=3, first_s=0.5, longest_s=10.0)
OUTCOMES = {"fail": Attempt.failed, "succeed": Attempt.succeeded, "end": Attempt.end}
STEPS = st.lists(st.sampled_from(["begin", "wait", *OUTCOMES]), max_size=80)


class World:
    """Breakers, and a clock."""

    def __init__(self, limits=LIMITS):
        self.now = 100.0
        self.breakers = Breakers(lambda: self.now, limits)

    def fail(self, times=1, name="a"):
        for _ in range(times):
            self.breakers.begin(name).failed()

    def rest(self):
        """How long nobody may ask, in eighths of a second."""
        began = self.now
        while not self.breakers.may_ask("a"):
            self.now += 0.125
        return self.now - began


def test_failures_in_a_row_rest_a_name_and_no_other():
    world = World()
    world.fail(2)
    world.breakers.begin("a").succeeded()
    world.fail(2)
    assert world.breakers.may_ask("a")
    world.fail()
    assert world.breakers.resting() == {"a"}
    assert world.breakers.may_ask("b")


def test_every_failed_try_doubles_the_rest_up_to_a_limit_and_a_success_shortens_it():
    world = World()
    world.fail(3)
    rests = [world.rest()]
    for _ in range(6):
        world.fail()
        rests.append(world.rest())
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    world.breakers.begin("a").succeeded()
    world.fail(3)
    assert world.rest() == 0.5


def test_a_try_that_ends_without_an_outcome_lets_another_one_try():
    world = World()
    world.fail(3)
    world.rest()
    trial = world.breakers.begin("a")
    trial.end()
    assert world.breakers.may_ask("a")
    later = world.breakers.begin("a")
    trial.end()
    assert not world.breakers.may_ask("a")
    later.end()
    assert world.breakers.may_ask("a")


def test_what_began_before_the_rest_decides_nothing():
    world = World()
    early, late = world.breakers.begin("a"), world.breakers.begin("a")
    world.fail(3)
    early.failed()
    late.succeeded()
    assert world.rest() == 0.5


def test_a_replica_that_is_met_anew_starts_without_failures():
    world = World()
    world.fail(3)
    world.breakers.forget("a")
    world.fail(2)
    assert world.breakers.may_ask("a")


@given(STEPS, st.integers(min_value=1, max_value=4))
def test_a_name_that_is_not_closed_is_asked_by_one_at_most(steps, failures):
    world = World(BreakerLimits(failures=failures))
    running, trials = [], []
    for step in steps:
        if step == "wait":
            world.now += 0.25
        elif step == "begin" and world.breakers.may_ask("a"):
            began = trials if world.breakers.reason("a") else running
            began.append(world.breakers.begin("a"))
        elif step in OUTCOMES and (running or trials):
            attempt = (running or trials).pop(0)
            OUTCOMES[step](attempt)
            attempt.end()
        assert len(trials) <= 1
        assert not (trials and world.breakers.may_ask("a"))
