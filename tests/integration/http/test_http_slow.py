"""Callers of the HTTP front who are slow, silent or many: each wait for them has an end."""

import json
import socket
import time
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from slipstream.client import errors
from slipstream.rpc.v1 import generation_pb2 as pb
from support.network.bad_routers import Failing, Scripted, first_chunk, register
from support.network.certificates import certificates
from support.services.background import served
from support.services.http_front import HELLO, fronted, post

SHORT_S = 0.1
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
OTHER = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = pb.GenerateStreamResponse(text="x" * (64 << 10), token_ids=[1])
NUM_LARGE = 200
"""More than what lies between a front and a caller can hold."""


@pytest.fixture(scope="module")
def router():
    with served(register(Failing(errors.Unavailable("nothing here")))) as address:
        yield address


@contextmanager
def connected(url):
    """A connection by hand, on the caller's side with little room for what is not read."""
    at = urlsplit(url)
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.settimeout(30)
        caller.connect((at.hostname, at.port))
        yield caller


def rest(caller):
    """All that comes until the front closes the connection."""
    return b"".join(iter(lambda: caller.recv(1 << 16), b""))


def drip(caller):
    """Send a byte now and then until the connection is gone."""
    with pytest.raises(OSError, match=r"reset|Broken pipe|aborted"):
        while True:
            caller.sendall(b"x")
            time.sleep(0.01)


SILENT = [("header_timeout_s", sent, b"") for sent in (b"", b"P", HEAD, HEAD + b"x-slow: 1")]
SILENT += [("header_timeout_s", OTHER + HEAD, b"HTTP/1.1 404 ")]
SILENT += [("keep_alive_s", OTHER, b"HTTP/1.1 404 ")]


@pytest.mark.parametrize(("limit", "sent", "answer"), SILENT)
def test_a_connection_is_closed_where_nothing_more_comes(router, limit, sent, answer):
    # What is answered has to come within the limit, on a busy machine too.
    with fronted(router, **{limit: 2.0 if answer else SHORT_S}) as url, connected(url) as caller:
        caller.sendall(sent)
        found = rest(caller)
    assert found.startswith(answer) if answer else found == b""


def test_headers_that_come_byte_by_byte_have_one_limit_for_all_of_them(router):
    with fronted(router, header_timeout_s=SHORT_S) as url, connected(url) as caller:
        caller.sendall(HEAD + b"x-slow: ")
        drip(caller)


def test_a_body_that_was_answered_already_is_not_read_for_ever(router):
    with fronted(router, body_timeout_s=SHORT_S) as url, connected(url) as caller:
        caller.sendall(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert caller.recv(12) == b"HTTP/1.1 404"
        drip(caller)


def test_who_does_not_shake_hands_is_not_waited_for(router, tmp_path):
    made = certificates(tmp_path)
    https = {"tls_cert": made.cert("router"), "tls_key": made.key("router")}
    with fronted(router, header_timeout_s=SHORT_S, **https) as url, connected(url) as caller:
        assert rest(caller) == b""


def test_one_connection_too_many_is_refused_and_room_is_given_back(router):
    with fronted(router, max_connections=2) as url:
        with ExitStack() as others:
            for _ in range(2):
                caller = others.enter_context(connected(url))
                caller.sendall(OTHER)
                assert caller.recv(12) == b"HTTP/1.1 404"
            with connected(url) as refused:
                head, _, body = rest(refused).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        error = json.loads(body)["error"]
        assert error["code"] == "too_many_connections"
        assert error["message"] == "the server has 2 connections, which is the limit"
        while post(url, {}, "/nowhere").status_code != 404:
            time.sleep(0.01)


def ask(caller):
    body = json.dumps({"messages": HELLO, "stream": True}).encode()
    caller.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


def test_a_caller_who_stops_reading_a_stream_gives_back_its_place_at_the_router():
    endless = Scripted(first_chunk(), *[LARGE] * NUM_LARGE, hangs=True)
    with (
        served(register(endless)) as address,
        fronted(address, send_timeout_s=SHORT_S) as url,
        connected(url) as caller,
    ):
        ask(caller)
        assert caller.recv(12) == b"HTTP/1.1 200"
        assert endless.cancelled.wait(30)


def test_a_caller_who_reads_now_and_then_has_the_time_of_a_request_and_no_more():
    endless = Scripted(first_chunk(), *[LARGE] * NUM_LARGE, hangs=True)
    limits = {"timeout_s": 0.2, "body_timeout_s": SHORT_S, "send_timeout_s": 0.3}
    with (
        served(register(endless)) as address,
        fronted(address, **limits) as url,
        connected(url) as caller,
    ):
        ask(caller)
        for _ in range(100):
            assert caller.recv(1024)
            time.sleep(0.01)
        assert not rest(caller).endswith(b"\r\n0\r\n\r\n")


def test_a_caller_who_goes_on_reading_gets_all_of_a_large_answer():
    finish = pb.GenerateStreamResponse(finish=pb.FinishInfo(reason=1))
    long = Scripted(first_chunk(), *[LARGE] * NUM_LARGE, finish)
    with served(register(long)) as address, fronted(address) as url, connected(url) as caller:
        ask(caller)
        answer = bytearray()
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += caller.recv(1 << 20)
    assert answer.count(b"x" * (64 << 10)) == NUM_LARGE
