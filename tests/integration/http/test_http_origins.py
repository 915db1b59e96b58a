"""Pages of other origins, HEAD, and the comments of a stream that has nothing to send yet."""

import asyncio
import json
import time

import httpx2
import pytest

from slipstream.client import errors
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceServicer
from support.network.bad_routers import Failing, register
from support.services.background import served
from support.services.http_front import HELLO, fronted

PAGE, OTHER = "http://localhost:3000", "https://evil.example"
LISTED = {"allowed_origins": (PAGE, "https://chat.example", "null")}
ANY = {"allowed_origins": ("*",)}
CHAT, RESPONSE = {"messages": HELLO}, {"input": "hello", "store": False}
HTTP = httpx2.Client(timeout=60)
STREAMS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": RESPONSE,
}
ANSWERS = [
    ("GET", "/version", None, 200),
    ("GET", "/openapi.json", None, 200),
    ("GET", "/", None, 200),
    ("HEAD", "/version", None, 200),
    ("GET", "/nowhere", None, 404),
    ("GET", "/v1/responses", None, 405),
    ("OPTIONS", "/v1/responses", None, 405),  # asks for no method
    ("POST", "/v1/chat/completions", {}, 400),
    ("POST", "/v1/chat/completions", CHAT, 429),
    ("GET", "/v1/models", None, 401),
    *(("POST", path, body, 200) for path, body in STREAMS.items()),
]


class Slow(GenerationServiceServicer):
    """Waits before each chunk, so many seconds, and may end with an error."""

    waits_s, error = (0.0,), None

    async def GenerateStream(self, request, context):
        for wait_s in self.waits_s:
            await asyncio.sleep(wait_s)
            if self.error is not None:
                raise self.error
            yield pb.GenerateStreamResponse(text="x", token_ids=[1], prompt=pb.PromptInfo())
        yield pb.GenerateStreamResponse(finish=pb.FinishInfo(reason=1))


@pytest.fixture(scope="module")
def slow():
    servicer = Slow()
    with served(register(servicer)) as servicer.address:
        yield servicer


@pytest.fixture
def router(slow):
    slow.waits_s, slow.error = (0.0,), None


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    HTTP.close()


def send(url, method, path, body, **headers):
    if body:
        body = {**body, "stream": True}
    if path == "/v1/models":
        headers["authorization"] = "Basic x"
    return HTTP.request(method, url + path, json=body, headers=headers)


def cors(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("access-")}


@pytest.fixture(scope="module", params=[LISTED, ANY, {}], ids=["listed", "any", "none"])
def fronts(request, slow):
    with (
        served(register(Failing(errors.CapacityError("no room")))) as failing,
        fronted(slow.address, page=True, **request.param) as url,
        fronted(failing, page=True, **request.param) as failing_url,
    ):
        yield request.param.get("allowed_origins", ()), url, failing_url


@pytest.mark.parametrize("origin", [PAGE, OTHER, None])
@pytest.mark.parametrize("asked", ANSWERS, ids=str)
def test_an_answer_of_any_kind_may_be_read_by_allowed_origins(fronts, router, asked, origin):
    (allowed, url, failing_url), (method, path, body, status) = fronts, asked
    headers = {} if origin is None else {"origin": origin}
    answer = send(failing_url if status == 429 else url, method, path, body, **headers)
    assert answer.status_code == status
    assert (answer.headers.get("vary") == "Origin") == bool(allowed)
    told = {}
    if origin is not None and allowed:
        told["access-control-expose-headers"] = "x-request-id, retry-after"
    if told and allowed != ("*",):
        told["access-control-allow-credentials"] = "true"
    if told and (origin in allowed or allowed == ("*",)):
        told["access-control-allow-origin"] = origin if origin in allowed else "*"
    assert cors(answer) == told


@pytest.mark.parametrize("origin", [PAGE, OTHER])
@pytest.mark.parametrize("wanted", ["authorization,content-type,x-stainless-os", None])
@pytest.mark.parametrize("path", [*STREAMS, "/v1/models", "/nowhere"])
def test_a_preflight_says_what_a_page_may_send(fronts, path, wanted, origin):
    allowed, url, _ = fronts
    asked = {"origin": origin, "access-control-request-method": "POST"}
    if wanted is not None:
        asked["access-control-request-headers"] = wanted
    answer = HTTP.options(url + path, headers=asked)
    if not allowed:
        assert answer.status_code in (404, 405)
        assert cors(answer) == {}
        return
    is_allowed = origin in allowed or allowed == ("*",)
    assert answer.status_code == (200 if is_allowed else 400)
    assert "Origin" in answer.headers["vary"]
    told = cors(answer)
    assert ("access-control-allow-origin" in told) == is_allowed
    assert told["access-control-allow-methods"] == "GET, HEAD, POST"
    assert told.get("access-control-allow-headers") == wanted
    assert int(told["access-control-max-age"]) > 0
    assert ("access-control-allow-credentials" in told) == (allowed != ("*",))


@pytest.mark.parametrize(
    "path", ["/", "/page/app.js", "/health", "/version", "/v1/models", "/openapi.json", "/nowhere"]
)
def test_head_is_answered_as_get_without_the_body(fronts, path):
    for url in fronts[1:]:
        got, head = (HTTP.request(method, url + path) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (got.status_code, b"")
        differing = {"date", "x-request-id"}
        same = [{*answer.headers.items()} for answer in (got, head)]
        assert {name for name, _ in same[0] ^ same[1]} <= differing
        assert int(head.headers["content-length"]) == len(got.content)
    assert HTTP.head(fronts[1] + "/v1/responses").status_code == 405


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("waits_s", [(0.15,), (0.0, 0.15), (0.15, 0.15, 0.0)])
def test_a_stream_that_waits_sends_comments_between_its_events(slow, path, waits_s):
    slow.waits_s, slow.error = waits_s, None
    with fronted(slow.address, stream_keep_alive_s=0.05) as url:
        body = send(url, "POST", path, STREAMS[path]).text
    with fronted(slow.address, stream_keep_alive_s=0) as url:
        plain = send(url, "POST", path, STREAMS[path]).text
    blocks, expected = (text.split("\n\n") for text in (body, plain))
    assert ": keep-alive" in blocks
    events = [block for block in blocks if block != ": keep-alive"]
    assert [shape(block) for block in events] == [shape(block) for block in expected]


def shape(block):
    """An event without what differs from request to request."""
    lines = block.splitlines()
    if lines and lines[-1].startswith("data: {"):
        lines[-1] = sorted(json.loads(lines[-1].removeprefix("data: ")))
    return lines


@pytest.mark.parametrize("path", STREAMS)
def test_a_refusal_after_a_comment_is_the_last_event(slow, path):
    slow.waits_s, slow.error = (0.15,), errors.CapacityError("no room for this")
    with fronted(slow.address, stream_keep_alive_s=0.05) as url:
        answer = send(url, "POST", path, STREAMS[path])
    assert answer.status_code == 200
    *_, last, end = answer.text.split("\n\n")
    assert end == ""
    value = json.loads(last.splitlines()[-1].removeprefix("data: "))
    if path == "/v1/responses":
        assert last.splitlines()[0] == "event: error"
        assert value["type"] == "error"
    about = value.get("error", value)
    assert (about["code"], about["message"]) == ("no_capacity", "no room for this")


@pytest.mark.parametrize("keep_alive_s", [0, 60.0])
@pytest.mark.parametrize("path", STREAMS)
def test_a_refusal_before_any_comment_has_a_status_of_its_own(slow, path, keep_alive_s):
    slow.waits_s, slow.error = (0.05,), errors.CapacityError("no room for this")
    with fronted(slow.address, stream_keep_alive_s=keep_alive_s) as url:
        assert send(url, "POST", path, STREAMS[path]).status_code == 429


@pytest.mark.parametrize("path", STREAMS)
def test_a_client_that_leaves_among_comments_ends_its_request(slow, path):
    slow.waits_s, slow.error = (60.0,), None
    with fronted(slow.address, stream_keep_alive_s=0.05) as url:
        with HTTP.stream("POST", url + path, json={**STREAMS[path], "stream": True}) as answer:
            assert next(answer.iter_text()).startswith(": keep-alive\n\n")
        began = time.monotonic()
    assert time.monotonic() - began < 30  # the front has nothing left that runs
