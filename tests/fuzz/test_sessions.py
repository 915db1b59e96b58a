"""A short run of the state machine of sessions; `make fuzz` runs it for longer."""

import pytest

from fuzz import sessions
from fuzz.world import world_of
from support.services import fleet
from support.state.redis_server import valkey_binary


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    return fleet.save_models(tmp_path_factory.mktemp("models"))


def test_calls_in_any_order_give_the_tokens_of_plain_decoding_and_leave_nothing(model):
    with world_of(model) as world:
        num_calls = sessions.run(world, max_examples=6, stateful_step_count=10, derandomize=True)
    assert num_calls > 20
