"""A model whose chat template is hostile takes its own requests down, and nothing else."""

import asyncio
import signal

import pytest

from slipstream.core.errors import InvalidRequest
from support.services import fleet
from support.services.hostile_templates import ATTACKS, HOSTILE
from support.services.processes import command_line, serve, text_workers

GRACE_S = 60
"""For 2 s of CPU, on a busy machine."""
MEMORY = "more than 768 MiB of memory"
SAID = {"power": "more than 2 s of CPU", "doubling": MEMORY, "format": MEMORY}
SAID["range"] = "refuses these messages"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A model with a template that is an attack where a message names one."""
    folder = fleet.save_models(tmp_path_factory.mktemp("models"), "hostile", seed=1)
    (folder / "chat_template.jinja").write_text(HOSTILE)
    return folder


async def test_the_requests_of_other_models_go_on_beside_every_attack(served, hostile):
    """The watchdog of loops is in every test here."""
    async with (
        fleet.running(other := fleet.target_worker(hostile)),
        fleet.routed([served, other]) as client,
    ):
        asked = [
            asyncio.create_task(client.generate(attack, model="hostile", max_tokens=1))
            for attack in ATTACKS
        ]
        while not all(task.done() for task in asked):
            await client.generate("hello", model="tiny", max_tokens=2)
            await client.server_info()
        for attack, task in zip(ATTACKS, asked, strict=True):
            with pytest.raises(InvalidRequest, match=f"the chat template .*{SAID.get(attack, '')}"):
                await task
        assert (await client.generate("hello", model="hostile", max_tokens=2)).token_ids


async def test_a_router_ends_in_time_while_a_template_runs(hostile):
    async with fleet.running(target := fleet.target_worker(hostile)):
        with serve("router", "--address", "127.0.0.1:0", "--targets", target.address) as router:
            address = await asyncio.to_thread(router.ready)
            workers = text_workers(router.pid)
            assert len(workers) == 1
            async with fleet.AsyncClient(address, retries=False) as client:
                asking = asyncio.create_task(client.generate("loop", max_tokens=1))
                await fleet.until(client, lambda info: info.num_requests == 1)
                router.signal(signal.SIGTERM)
                assert await asyncio.to_thread(router.wait, GRACE_S) == 0
                await asyncio.wait({asking})
            assert not any(map(command_line, workers))
