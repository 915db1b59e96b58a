"""`slipstream check` at routers of every kind: what it finds, and what it makes of it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.cli.main import exit_code
from support.network.key_files import key, write_keys
from support.network.ports import free_port
from support.services import fleet

TOKEN = "a-token"


@pytest.fixture
def check(capsys):
    """Runs the command; its exit code, and what it said."""

    async def run(*flags):
        code = await asyncio.to_thread(exit_code, ["check", "--timeout-s", "30", *flags])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@asynccontextmanager
async def installed(folder, **config):
    """The address of a router with a target."""
    target = fleet.target_worker(folder)
    async with fleet.running(target), fleet.routed([target], token=TOKEN, **config) as client:
        yield client.address


async def test_an_answer_and_the_ready_replicas_by_what_they_are_and_their_dtype(check, folder):
    targets = [fleet.target_worker(folder, dtype=at) for at in ("float32", "bfloat16", "float32")]
    draft = fleet.draft_worker(f"vanilla:{folder}", folder)
    async with fleet.running(*targets, draft), fleet.routed(targets, [draft]) as client:
        await fleet.until(client, lambda info: fleet.num_ready(info, "target") == 3)
        code, said = await check("--router", client.address)
    assert code == 0, said
    assert said.startswith(f"{client.address} answers with 48 tokens of ")
    assert "of them drafted (mean acceptance length" in said
    assert said.splitlines()[1:] == [
        "target tiny in bfloat16 by native, 1 ready",
        "target tiny in float32 by native, 2 ready",
        "draft vanilla in float32, 1 ready",
    ]


async def test_a_router_without_any_draft_passes_where_none_is_asked_for(check, folder):
    async with installed(folder, drafter="none") as at:
        code, said = await check("--router", at)
        assert (code, said.startswith("error: ")) == (1, True)
        assert f"{at} refuses to be checked" in said
        code, said = await check("--router", at, "--no-speculation")
    assert code == 0
    answer, target = said.splitlines()
    assert answer.endswith("decoded plainly")
    assert target == "target tiny in float32 by native, 1 ready"


async def test_a_router_that_asks_for_a_token_is_shown_the_one_of_the_environment(
    check, folder, tmp_path, monkeypatch
):
    write_keys(tmp_path / "keys.toml", key("alice", TOKEN))
    async with installed(folder, key_file=tmp_path / "keys.toml") as at:
        code, said = await check("--router", at)
        assert code == 1 and "token" in said
        monkeypatch.setenv("SLIPSTREAM_TOKEN", TOKEN)
        code, said = await check("--router", at)
    assert code == 0, said


async def test_a_router_whose_drafts_are_gone_fails_though_text_comes(check, folder):
    async with installed(folder, drafts=("127.0.0.1:1",)) as at:
        code, said = await check("--router", at)
    assert code == 1
    assert "answers with 48 tokens" in said and "nothing was drafted (no draft)" in said


async def test_a_router_that_is_not_there_fails_and_one_that_is_not_named_is_no_question(check):
    code, said = await check("--router", "127.0.0.1:1", "--timeout-s", "0.5")
    assert (code, said.startswith("error: ")) == (1, True)
    assert (await check())[0] == 2
    assert (await check("--router", "h:1", "--plaintext", "--tls"))[0] == 2


async def test_what_is_still_starting_is_waited_for_where_that_is_asked_for(check, folder):
    target, draft = fleet.target_worker(folder), fleet.draft_worker(f"vanilla:{folder}", folder)
    large = fleet.target_worker(folder.parent / "large")
    large.address = f"127.0.0.1:{free_port()}"
    async with (
        fleet.running(target, draft),
        fleet.routed([target.address, large.address], [draft]) as client,
    ):
        await draft.stop()
        await fleet.until(client, lambda info: fleet.num_ready(info, "draft") == 0)
        code, said = await check("--router", client.address)
        assert (code, said.startswith("error: ")) == (1, True)
        waiting = asyncio.create_task(check("--router", client.address, "--wait-s", "60"))
        await draft.start()
        assert (await waiting)[0] == 0
        fleet.save_models(folder.parent, "large", seed=7)
        flags = ("--model", "large", "--no-speculation", "--wait-s", "60")
        waiting = asyncio.create_task(check("--router", client.address, *flags))
        async with fleet.running(large):
            assert (await waiting)[0] == 0
    assert (await check("--router", "h:1", "--wait-s", "-1"))[0] == 2
