"""The router and its replicas: they come, go, drain and share the sessions."""

import pytest

from slipstream.client import Mode, SpeculationOptions, StopPolicy
from slipstream.core.errors import Unavailable
from support.services import fleet
from support.services.fleet import draft_worker, glide_of, num_ready, routed, running

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)


async def test_replicas_come_and_go_with_the_file_that_lists_them(target, folder, tmp_path):
    other = target.twin()
    draft = draft_worker(str(glide_of(folder)), folder)
    targets, drafts = tmp_path / "targets", tmp_path / "drafts"
    async with running(target, other, draft):
        targets.write_text(f"{target.address}\n")
        drafts.write_text("")
        async with routed([f"file:{targets}"], [f"file:{drafts}"]) as client:
            async with client.stream("hello", max_tokens=3000) as stream:
                await anext(stream)
                targets.write_text(f"{other.address}\n")
                drafts.write_text(f"{draft.address}\n")
                await fleet.until(
                    client,
                    lambda info: (
                        num_ready(info, "draft") == 1
                        and [at.address for at in info.replicas if at.state == "ready"][-1]
                        == other.address
                    ),
                )
                info = await client.server_info()
                leaving = next(at for at in info.replicas if at.address == target.address)
                assert (leaving.state, leaving.num_requests) == ("draining", 1)
                await anext(stream)  # what runs goes on
                result = await client.generate("hello", max_tokens=20, speculation=FORCED)
                assert result.stats.speculation.num_spec_steps > 0
                assert (await other.load()).num_rounds > 0
            await fleet.until(
                client, lambda info: target.address not in [at.address for at in info.replicas]
            )


async def test_a_target_that_drains_gets_nothing_new(target, draft):
    other = target.twin()
    async with running(target, other, draft), routed([target, other], [draft]) as client:
        await target.drain()
        await fleet.until(client, lambda info: num_ready(info, "target") == 1)
        for _ in range(3):
            await client.generate("hello", max_tokens=3)
        assert (await target.load()).num_rounds == 0
        await other.stop()
        await fleet.until(client, lambda info: num_ready(info, "target") == 0)
        with pytest.raises(Unavailable, match="no target for model tiny is ready"):
            await client.generate("hello", max_tokens=3)
