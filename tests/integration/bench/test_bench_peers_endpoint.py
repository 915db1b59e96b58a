"""The config of servers with OpenAI's API, in its process, against a small HTTP server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slipstream.bench.peers.engine import EngineProcess
from slipstream.core.errors import ServiceError
from support.services.processes import ROOT


class _Completions(BaseHTTPRequestHandler):
    """Says one word for each token that it may, and what its server was told to say of them."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        assert self.path == "/v1/models"
        self._send(json.dumps({"data": [{"id": "small"}]}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked["authorization"] = self.headers["Authorization"]
        self.server.asked.append(asked)
        if asked["prompt"] == [13]:
            self.send_error(400, "an unlucky prompt")
            return
        events = [{"choices": [{"text": f"w{n} "}]} for n in range(asked["max_tokens"])]
        if self.server.tells_usage:
            events.append({"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._send("".join([*lines, "data: [DONE]\n\n"]))

    def _send(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Completions)
    server.asked, server.tells_usage = [], True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def engine(server):
    url = f"http://127.0.0.1:{server.server_port}/v1"
    engine = EngineProcess({"system": "openai", "url": url, "token": "secret"})
    yield engine
    engine.close()


def test_prompts_are_token_ids_and_tokens_are_what_the_server_counts(server, engine):
    reply = engine.send("vllm", [[1, 2], [3]], 2)
    assert [answer.num_tokens for answer in reply.answers] == [2, 2]
    assert {answer.text for answer in reply.answers} == {"w0 w1 "}
    assert sorted(asked["prompt"] for asked in server.asked) == [[1, 2], [3]]
    for asked in server.asked:
        assert asked["model"] == "small"
        assert asked["temperature"] == 0
        assert asked["authorization"] == "Bearer secret"
    assert reply.wall_s > 0
    assert engine.facts.settings["model"] == "small"
    assert engine.peak_bytes() > 0


def test_a_refused_prompt_is_an_error_and_the_next_one_is_answered(server, engine):
    with pytest.raises(ServiceError, match="answers 400"):
        engine.send("vllm", [[13]], 2)
    assert engine.send("vllm", [[14]], 1).answers[0].num_tokens == 1


def test_a_server_without_usage_is_refused(server, engine):
    server.tells_usage = False
    with pytest.raises(ServiceError, match="sends no usage"):
        engine.send("vllm", [[1]], 2)
