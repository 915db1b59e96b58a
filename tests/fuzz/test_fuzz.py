"""A short run of the fuzzer and of the state machine of sessions, and all cases that were kept;
`make fuzz` runs them for longer."""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from chaos import nursery
from chaos.cluster import running, tiny_pair
from fuzz import sessions
from fuzz.case import CORPUS, load
from fuzz.fuzzer import Fuzzer
from fuzz.generator import ROLES
from fuzz.victims import Victims
from fuzz.world import world_of
from support.state.redis_server import valkey_binary

SEED = 18
SIZE = 150
MODULE = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    nursery.begin(tmp_path_factory.mktemp("nursery"))
    return tiny_pair(tmp_path_factory.mktemp("models"))


def test_calls_in_any_order_give_the_tokens_of_plain_decoding_and_leave_nothing(pair):
    with world_of(Path(pair.target)) as world:
        num_calls = sessions.run(world, max_examples=6, stateful_step_count=10, derandomize=True)
    assert num_calls > 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(pair, tmp_path_factory):
    nursery.finish()
    async with running(pair, tmp_path_factory.mktemp("logs"), kind=Victims) as services:
        yield services


@pytest_asyncio.fixture(loop_scope="module")
async def fuzzer(services):
    """A fuzzer; after its test, nothing is held, and others are answered as before."""
    expected = await services.answer()
    fuzzer = Fuzzer(services, SEED, None)
    await fuzzer.begin()
    yield fuzzer
    assert await fuzzer.close() == {}
    assert await services.answer() == expected


@MODULE
@pytest.mark.parametrize("role", ROLES)
async def test_messages_of_every_kind_are_refused_or_answered_and_hold_no_session(fuzzer, role):
    await fuzzer.batch(role, 0, SIZE)
    assert [*fuzzer.tally.findings] == []
    assert fuzzer.tally.forms[role].total() >= SIZE


@MODULE
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
async def test_cases_that_were_kept_show_no_fault(fuzzer, services, path):
    shown = await fuzzer.send(load(path))
    await asyncio.sleep(0.02)
    assert [*map(str, shown), *map(str, services.symptoms())] == []
