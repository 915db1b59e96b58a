"""`slipstream bench leaks` on tiny models: nothing stays, and what does stay is found."""

import json

import pytest

import fleet
from slipstream.bench.leaks.footprint import Gauge
from slipstream.bench.leaks.plan import PARTS, LeakPlan
from slipstream.bench.leaks.run import LeakRun, run_leaks
from slipstream.bench.questions import Question
from slipstream.cli.main import exit_code
from slipstream.client import AsyncClient
from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.engine import EngineOptions

OPTIONS = EngineOptions(dtype="float32", threads=1)
ASKED = ("hello there", "abcabcabcabc", "1 2 3 " * 40)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    items = [{"question_id": n, "category": "a", "turns": [text]} for n, text in enumerate(ASKED)]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize("draft", ["glide", "none"])
def test_sessions_that_end_or_are_left_leave_nothing_behind(
    target, prompts, tmp_path, capsys, draft
):
    out = tmp_path / "out.json"
    name = str(fleet.glide_of(target)) if draft == "glide" else draft
    place = ["--target", str(target), "--draft", name, "--dtype", "float32", "--threads", "1"]
    flags = ["--num-sessions", "200", "--warmup", "20", "--prompts", str(prompts)]
    assert exit_code(["bench", "leaks", *place, *flags, "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    found = written["leaks"]
    assert [at["num_sessions"] for at in found["moments"]] == list(range(0, 201, 10))
    for at in found["moments"]:
        assert (at["session_kv_bytes"], at["draft_kv_bytes"], at["num_tasks"]) == (0, 0, 0)
        assert at["resident_bytes"] > 1 << 20
        assert at["prefix_kv_bytes"] > 0
        assert min(at["num_objects"], at["num_threads"], at["num_files"]) > 0
    assert sum(found["ends"].values()) == 200
    assert set(found["ends"]) == {
        "finished",
        "left after some tokens",
        "left before the first token",
    }
    assert (found["errors"], found["held"], found["is_clean"]) == ({}, [], True)
    assert written["environment"]["num_sessions"] == 200
    assert "no session that has ended holds" in capsys.readouterr().out


async def test_an_answer_that_nobody_ends_is_found(target):
    engines = AsyncEmbedded.load(str(target), str(fleet.glide_of(target)), OPTIONS)
    async with AsyncClient.of(engines) as client:
        questions = (Question(1, "a", (ASKED[0],)),)
        plan = LeakPlan(questions, PARTS, 2, max_new_tokens=3, warmup=0)
        run = LeakRun(plan, client, Gauge(engines).read, lambda part: None)
        assert (await run_leaks(run)).is_clean
        async with client.stream(ASKED[1], max_tokens=64) as forgotten:
            await anext(forgotten)
            course = await run_leaks(run)
        assert not course.is_clean
        assert course.held[0].endswith("bytes of keys and values in use after 0 sessions")
        assert (await run_leaks(run)).is_clean
