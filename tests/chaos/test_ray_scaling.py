"""Drafts on Ray grow from one to three under load and shrink back, and no stream fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream.client import Client, Mode, SpeculationOptions
from support.services.pools import ray_pools
from support.services.processes import save_long_checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
PROMPT = "the quick brown fox"
LENGTH = 200
FORCED = SpeculationOptions(mode=Mode.FORCED)
CALLERS = 16
SCALING = {
    "max_replicas": 3,
    "load_per_replica": 0.6,
    "look_back_s": 3,
    "upscale_delay_s": 1,
    "downscale_delay_s": 3,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_long_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")


def ask_until(address, enough):
    """The answers that one caller gets, one request after the other."""
    answers = []
    with Client(address, retries=False) as client:
        while not enough.is_set():
            asked = client.generate(PROMPT, max_tokens=LENGTH, speculation=FORCED)
            answers.append(asked.token_ids)
    return answers


def answers_until(address, condition, *, callers):
    """What so many callers are answered while `condition` is waited for."""
    enough = threading.Event()
    with ThreadPoolExecutor(callers) as pool:
        asking = [pool.submit(ask_until, address, enough) for _ in range(callers)]
        try:
            condition()
        finally:
            enough.set()
    return [answer for asked in asking for answer in asked.result()]


def test_drafts_grow_under_load_and_shrink_after_it_and_no_stream_fails(tiny, tmp_path):
    with Client.embedded(str(tiny), "none", dtype="float32") as client:
        plain = client.generate(PROMPT, max_tokens=LENGTH).token_ids
    with ray_pools(tiny, tmp_path, **SCALING) as pools:
        address = pools.router.ready()
        first = pools.until("draft", number=1)
        grown = answers_until(address, lambda: pools.until("draft", number=3), callers=CALLERS)
        pools.router.until_logged("slipstream.router draft ", times=3)
        # One caller is no reason for three drafts, and is there when two of them go.
        shrunk = answers_until(address, lambda: pools.until("draft", number=1), callers=1)
        assert len(pools.until("draft", number=1)) == len(first)
    assert len(grown) >= CALLERS
    assert {*grown, *shrunk} == {plain}
