"""The three services as processes: they start, serve, survive a loss, and end as they should."""

import io
import signal
import socket
import sys
import time
from contextlib import closing
from itertools import islice
from types import SimpleNamespace

import pytest

from slipstream.cli.main import exit_code
from slipstream.client import Client, FinishReason, Mode, SpeculationOptions
from slipstream.core.errors import ServiceError
from slipstream.telemetry.traces import find_trace, read_spans
from support.network.streams import tokens_of
from support.services.processes import children, command_line, freeze, kill, thaw, up

PROMPT = "the quick brown fox"
LONG = 800
FORCED = SpeculationOptions(mode=Mode.FORCED)


@pytest.fixture(scope="module")
def running(model):
    """`slipstream up` with a draft that is the target itself."""
    with up(model, f"vanilla:{model}") as process:
        process.ready()
        process.until_logged("is ready", times=2)  # target and draft, to the router
        yield process
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.fixture
def client(running):
    with Client(running.ready()) as client:
        yield client


def test_up_says_last_on_standard_output_where_the_router_serves(running, client):
    assert running.out == [f"ready {running.ready()}"]
    assert client.model_info().model == "tiny"


def test_chat_keeps_its_conversation_at_the_router(running, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nmore\n/reset\nhello\n"))
    assert exit_code(["chat", "--router", running.ready(), "--max-new-tokens", "5"]) == 0
    said = capsys.readouterr().err
    assert said.count("[5 tokens, ") == 3
    assert "A new conversation." in said


def test_a_draft_that_is_killed_costs_no_token_and_is_used_again_once_back(running, client, plain):
    draft, target = running.child("draft"), running.child("target")
    said = [line for line in running.err if "slipstream.router draft " in line]
    (ready,) = [line.partition("draft ")[2] for line in said if line.endswith(" is ready")]
    with closing(client.stream(PROMPT, max_tokens=LONG, speculation=FORCED)) as chunks:
        before = list(islice(chunks, 5))
        freeze(target)  # so that the request is still going on when its draft is gone
        kill(draft)
        thaw(target)
        *after, last = chunks
    assert tokens_of([*before, *after, last]) == plain(PROMPT, LONG)
    assert last.finish_reason is FinishReason.LENGTH
    assert last.stats.speculation.num_draft_tokens > 0
    assert sum(last.stats.speculation.fallbacks.values()) > 0
    assert "it is started again" in running.until_logged("ended by SIGKILL")
    running.until_logged(ready, times=2)
    again = client.generate(PROMPT, max_tokens=60, speculation=FORCED)
    assert running.child("draft") != draft
    assert again.token_ids == plain(PROMPT, 60)
    assert again.stats.speculation.num_draft_tokens > 0
    assert again.stats.speculation.fallbacks == {}
    timings = again.stats.timings
    assert 0 < timings.draft_engine_s < timings.draft_service_s < timings.draft_s
    assert 0 < timings.target_engine_s < timings.target_service_s < timings.verify_s


@pytest.fixture(scope="module")
def stopped(model, tmp_path_factory):
    """What is left of `slipstream up` that was told to stop while a stream ran."""
    traces = tmp_path_factory.mktemp("up") / "traces"
    flags = ("--traces", str(traces))
    with up(model, "ngram", *flags) as process, Client(process.ready()) as client:
        asked = client.generate(PROMPT, max_tokens=8)
        hint = process.until_logged("traces are kept in")
        children = [process.child(role) for role in ("target", "router")]
        with closing(client.stream(PROMPT, max_tokens=LONG)) as chunks:
            before = list(islice(chunks, 1))
            process.signal(signal.SIGTERM)
            process.until_logged("stopping")
            with Client(process.ready(), retries=False) as late, pytest.raises(ServiceError):
                late.generate(PROMPT, max_tokens=4)
            tokens = tokens_of([*before, *chunks])
        found = {"code": process.wait(), "children": children, "tokens": tokens}
        return SimpleNamespace(**found, traces=traces, request_id=asked.request_id, hint=hint)


def test_a_stopping_replica_finishes_what_runs_and_takes_nothing_new(stopped, plain):
    assert stopped.code == 0
    assert stopped.tokens == plain(PROMPT, LONG)
    assert [command_line(pid) for pid in stopped.children] == ["", ""]


def test_a_request_to_up_leaves_a_trace_that_the_command_it_names_shows(stopped, capsys):
    place = stopped.traces
    assert f"in {place}; `slipstream trace --last --dir {place}`" in stopped.hint
    assert exit_code(["trace", stopped.request_id, "--dir", str(place)]) == 0
    said = capsys.readouterr().out
    assert stopped.request_id in said
    found = find_trace(read_spans(place), stopped.request_id)
    assert {span.service for span in found.spans} == {"slipstream-router", "slipstream-target"}
    assert found.orphans == ()


def test_without_its_target_up_stops_everything_and_says_so(model):
    with up(model, "none") as process:
        process.ready()
        router = process.child("router")
        kill(process.child("target"))
        assert process.wait() == 1
        assert process.err[-1] == "error: the target ended by SIGKILL, so everything stops"
        assert command_line(router) == ""


def test_a_draft_that_can_not_start_ends_up(model, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text("{")
    with up(model, f"vanilla:{model}", "--profile", str(profile)) as process:
        while not (targets := children(process.pid, "slipstream_target")):
            time.sleep(0.01)
        assert process.wait() == 2
        assert process.err[-1].startswith(f"error: the draft did not start: the profile {profile}")
    assert process.out == []
    assert not any(map(command_line, targets))


def test_a_target_that_is_killed_while_it_loads_ends_up_and_is_named(model):
    with up(model, f"vanilla:{model}") as process:
        process.until_logged("slipstream.target configuration")
        kill(process.child("target"))
        assert process.wait() == 1
        assert process.err[-1] == "error: the target did not start: ended by SIGKILL"


@pytest.mark.parametrize("flag", ["--port", "--http"])
def test_a_port_in_use_is_said_before_anything_loads(model, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with up(model, "ngram", flag, port) as process:
            assert process.wait() == 1
    (said,) = process.err
    assert f"can't start: the address 127.0.0.1:{port} can't be listened on" in said
