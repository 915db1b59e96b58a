"""`slipstream bench peers`: servers side by side, and what is refused."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slipstream.cli.main import exit_code
from support.commands import refusal
from support.models.bench_files import save_prompts


class _Chats(BaseHTTPRequestHandler):
    """Answers with a word for each token, and refuses an unlucky question."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._send({"data": [{"id": "small"}] if self.server.has_model else []})

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(sent | {"authorization": self.headers["Authorization"]})
        if sent["messages"][0]["content"] == "unlucky":
            self.send_error(400, "an unlucky question")
            return
        text = " ".join([self.server.word] * sent["max_tokens"])
        usage = {"usage": {"completion_tokens": sent["max_tokens"]}} if self.server.counts else {}
        self._send({"choices": [{"message": {"content": text}}], **usage})

    def _send(self, values):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(values).encode())


@pytest.fixture
def servers():
    """Two servers, of which the second answers in other words."""
    found = []
    for word in ("yes", "no"):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Chats)
        server.word, server.requests, server.counts, server.has_model = word, [], True, True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        found.append(server)
    yield found
    for server in found:
        server.shutdown()
        server.server_close()


def flags(servers, tmp_path, *texts):
    questions = [(number, "qa", [text]) for number, text in enumerate(texts)]
    words = [*save_prompts(tmp_path, *questions), "--repeats", "2", "--max-new-tokens", "3"]
    for name, server in zip(("ours", "theirs"), servers, strict=True):
        words += ["--endpoint", f"{name}=http://127.0.0.1:{server.server_port}/v1/"]
    return ["bench", "peers", *words]


def test_servers_answer_the_same_chats_and_are_compared_with_the_first(servers, tmp_path, capsys):
    out, token = tmp_path / "out.json", tmp_path / "token"
    token.write_text("secret")
    words = ["--concurrency", "1,2", "--endpoint-token-file", str(token), "--json", str(out)]
    assert exit_code([*flags(servers, tmp_path, "a", "b"), *words]) == 0
    figures = json.loads(out.read_text())["peers"]
    assert figures["base"] == "ours"
    for level in figures["levels"]:
        ours, theirs = level["engines"]["ours"], level["engines"]["theirs"]
        assert ours["ratio"]["median"] == 1
        assert ours["identical"] == ours["requests"] > 0
        assert theirs["identical"] == 0
        assert theirs["mean_acceptance_length"] is None, "no server says how it drafted"
        assert ours["tokens"] == 3 * ours["requests"]
    told = {"model": "small", "temperature": 0, "authorization": "Bearer secret"}
    assert all(told.items() <= sent.items() for sent in servers[1].requests)
    said = capsys.readouterr().out
    assert "over ours" in said
    assert "differs" not in said, "other weights promise nothing"


def test_a_question_that_a_server_refuses_ends_the_benchmark(servers, tmp_path, capsys):
    assert exit_code(flags(servers, tmp_path, "a", "unlucky")) == 1
    assert "/v1/chat/completions answers 400: " in capsys.readouterr().err


def test_a_server_that_counts_no_tokens_or_has_no_model_ends_the_benchmark(
    servers, tmp_path, capsys
):
    servers[1].counts = False
    assert exit_code(flags(servers, tmp_path, "a")) == 1
    assert "sends no usage" in capsys.readouterr().err
    servers[1].has_model = False
    assert exit_code(flags(servers, tmp_path, "a")) == 1
    assert "serves no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "there is no endpoint to measure"),
        (["--endpoint", "here"], "must be NAME=http://"),
        (["--endpoint", "a=http://b", "--endpoint", "a=http://c"], "'a' is named twice"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(words, reason, capsys):
    assert reason in refusal(capsys, "bench", "peers", *words)


def test_a_server_that_is_not_there_is_named(capsys):
    assert exit_code(["bench", "peers", "--endpoint", "a=http://127.0.0.1:9/v1"]) == 1
    assert "127.0.0.1:9/v1/models does not answer" in capsys.readouterr().err
