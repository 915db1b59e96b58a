"""What a service logs is one line each, of what it is about, and quotes nobody."""

import contextvars
import io
import json
import logging
import re
import warnings
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from slipstream.core import errors
from slipstream.telemetry.logs import JsonLines, TextLines, bind, set_up_logging

MARKER = "do-not-quote-me"
LEVELS = ["debug", "info", "warning", "error"]


class Log:
    """A logger of its own, and what it has written."""

    def __init__(self, formatter):
        self._written = io.StringIO()
        handler = logging.StreamHandler(self._written)
        handler.setFormatter(formatter)
        self.logger = logging.Logger("slipstream.of-a-test", logging.DEBUG)
        self.logger.addHandler(handler)

    @property
    def text(self):
        return self._written.getvalue()

    @property
    def lines(self):
        return [json.loads(line) for line in self.text.splitlines()]


def json_log():
    return Log(JsonLines("router"))


def apart(work, *args):
    """Run something that binds ids in a context of its own."""
    return contextvars.Context().run(work, *args)


@pytest.fixture
def span():
    """A current span that is sampled."""
    with TracerProvider(ALWAYS_ON).get_tracer("t").start_as_current_span("s") as made:
        yield made.get_span_context()


class Unspeakable:
    def __str__(self):
        raise RuntimeError("no words")


VALUES = st.one_of(
    st.text(st.characters(codec=None)),
    st.integers(),
    st.floats(),
    st.binary(),
    st.none(),
    st.lists(st.text()),
    st.builds(Unspeakable),
)
MESSAGES = st.one_of(st.text(st.characters(codec=None)), st.sampled_from(["%s %s", "%d", "%(a)s"]))


@given(st.one_of(MESSAGES, VALUES), st.lists(VALUES, max_size=3), st.booleans())
def test_whatever_is_logged_is_one_json_object_on_one_line(message, values, has_error):
    log = json_log()
    error = errors.Unavailable("lost\nfor ever\ud800") if has_error else None
    log.logger.warning(message, *values, exc_info=error)
    (line,) = log.text.encode("ascii").split(b"\n")[:-1]
    told = json.loads(line)
    assert all(isinstance(value, str) and value.encode() is not None for value in told.values())
    assert ("exception" in told) == has_error


def test_a_line_says_when_what_and_who():
    log = json_log()
    log.logger.warning("the %s is lost", "draft")
    (line,) = log.lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert line == {
        "severity": "WARNING",
        "logger": "slipstream.of-a-test",
        "message": "the draft is lost",
        "service": "slipstream-router",
    }


def test_lines_carry_the_ids_of_request_session_and_span(span):
    def work(log):
        bind(request_id="r-1")
        bind(session_id="s-1")
        with trace.use_span(trace.NonRecordingSpan(span)):
            log.logger.info("here")
        return log

    ids = {"request_id": "r-1", "session_id": "s-1"}
    ids |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    (line,) = apart(work, json_log()).lines
    assert {name: line.get(name) for name in ids} == ids
    end = " ".join(f"{name}={ids[name]}" for name in ("trace_id", "span_id", *list(ids)[:2]))
    assert apart(work, Log(TextLines())).text.endswith(f" here {end}\n")


@given(st.text(st.characters(codec=None)), st.booleans())
def test_a_record_is_one_line_of_text_whatever_it_quotes(quoted, has_error):
    log = Log(TextLines())
    error = raised(errors.Unavailable(f"the peer says {quoted}")) if has_error else None
    log.logger.warning("the peer says %s", quoted, exc_info=error)
    line, end = log.text[:-1], log.text[-1]
    assert (line.isprintable(), end) == (True, "\n")


def raised(error, cause=None):
    try:
        try:
            raise cause or ValueError
        except BaseException as before:
            raise error from before
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines("target")], ids=["text", "json"])
def test_errors_that_may_quote_a_caller_are_logged_by_class_and_place(formatter):
    quoting = [ValueError(MARKER), KeyError(MARKER), UnicodeError(MARKER), Exception(MARKER)]
    log = Log(formatter)
    for error in quoting:
        log.logger.error("failed", exc_info=raised(errors.InternalError("it broke"), error))
        log.logger.error("failed", exc_info=raised(error, OSError("disk full")))
    log.logger.error("failed", exc_info=ExceptionGroup("g", [raised(error) for error in quoting]))
    assert MARKER not in log.text
    told = {"it broke", "disk full", "in raised", *(type(error).__name__ for error in quoting)}
    assert {word for word in told if word not in log.text} == set()


def test_errors_that_came_of_each_other_are_logged_once():
    first, second = raised(OSError("one")), raised(OSError("two"))
    first.__cause__, second.__cause__ = second, first
    log = json_log()
    log.logger.error("failed", exc_info=first)
    said = log.lines[0]["exception"]
    assert [said.count(f"OSError: {name}") for name in ("one", "two")] == [1, 1]


@contextmanager
def bare_logging():
    """No handlers, as at the start of a process."""
    root, ours = logging.getLogger(), logging.getLogger("slipstream")
    kept, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = kept
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.mark.parametrize("as_json", [True, False])
def test_logs_and_warnings_go_to_standard_error_in_one_format(capsys, as_json):
    with bare_logging(), warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up_logging(as_json=as_json, level="info", role="draft")
        logging.getLogger("slipstream.draft").info("one")
        logging.getLogger("a.library").info("two")
        warnings.warn("old\nways", stacklevel=1)
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.startswith("{") for line in said.err.splitlines()] == [as_json] * 3
    assert r"old\nways" in said.err


@pytest.mark.parametrize("level", LEVELS)
def test_libraries_never_say_more_than_info(capsys, level):
    with bare_logging():
        set_up_logging(as_json=True, level=level, role="draft")
        for name in ("slipstream.draft", "a.library"):
            for severity in LEVELS:
                getattr(logging.getLogger(name), severity)(severity)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    ours = LEVELS[LEVELS.index(level) :]
    theirs = [severity for severity in ours if severity != "debug"]
    assert [line["message"] for line in said] == [*ours, *theirs]


def test_what_grpc_logs_of_a_header_that_is_no_text_is_left_out(caplog):
    set_up_logging(as_json=False, level="info", role="router")
    logging.getLogger("grpc._cython.cygrpc").error("Invalid encoding on %s", b"Bearer \xff")
    logging.getLogger("grpc._cython.cygrpc").error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]
