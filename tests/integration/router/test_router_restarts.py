"""Replicas come, go and drain, and are found where they announce themselves."""

from slipstream.client import Mode, SpeculationOptions, StopPolicy
from slipstream.core.request.server_info import ReplicaRole
from slipstream.state.factory import announced_in
from slipstream.state.options import StoreOptions
from support.services import fleet
from support.services.fleet import num_ready, routed, running
from support.state.redis_server import redis_server

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)


async def test_replicas_are_found_in_the_registry_and_stay_when_redis_is_gone(targets):
    def announced(worker):
        return announced_in(options, ReplicaRole.TARGET, worker.address, "one")

    with redis_server() as server:
        options = StoreOptions(server.url)
        first, second = targets
        async with (
            running(*targets),
            announced(first),
            routed(["registry:"], store_url=server.url) as client,
            announced(second),
        ):
            await fleet.until(client, lambda info: num_ready(info, "target") == 2)
            server.kill()
            result = await client.generate("hello", max_tokens=5)
            assert len(result.token_ids) == 5
            assert num_ready(await client.server_info(), "target") == 2
            server.start()


async def test_replicas_come_and_go_with_the_file_that_lists_them(target, draft, tmp_path):
    other = target.twin()
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
