"""Traces of the three services as processes, and of who asks them, as a collector gets them.
Everything is asked once, the services end, and the laws are about what had come by then."""

import pytest

from slipstream.telemetry.traces import find_trace
from support.services import fleet
from support.state.redis_server import running_redis
from support.telemetry.otlp_collector import collector, traces_of
from support.telemetry.told_services import TOKEN, services
from support.telemetry.traced_story import (
    APPLICATION,
    DRAFT,
    FIRST,
    MARK,
    PROMPT,
    ROUTER,
    TARGET,
    Seen,
    application,
    ask_all,
)

GENERATE = "slipstream.rpc.v1.GenerationService/Generate"
SERVED, CALLED = (GENERATE, f"{GENERATE}Stream"), ("draft.propose", "target.verify")
INNER = ("round", "prompt.encode", "session.acquire", "session.park", "kv.wait", "engine.queue")
KINDS = {
    **{name: {"server"} for name in SERVED},
    **{name: {"client", "server"} for name in CALLED},
    **{name: {"internal"} for name in (*INNER, "engine.run")},
    "chat": {"client"},
}


@pytest.fixture(scope="module")
def seen(folder):
    with collector() as to, running_redis() as store:
        found = Seen(to)
        with application(to) as watcher, services(to, folder, str(fleet.glide_of(folder))) as run:
            ask_all(found, run, store, watcher)
            found.codes = run.stop()
            processes = (run.target, run.draft, *run.routers)
            found.logs = [line for at in processes for line in (*at.out, *at.err)]
        yield found


def children(trace, span):
    return [at for at in trace.spans if at.parent_id == span.span_id]


def rounds(trace):
    return [span for span in trace.spans if span.name == "round"]


def test_the_services_end_well_and_complain_of_nothing(seen):
    assert seen.codes == [0, 0, 0]
    assert [line for line in seen.logs if "Traceback" in line or " ERROR " in line] == []


def test_a_distributed_request_is_one_tree(seen):
    for request_id in [*seen.well, seen.long, seen.followed]:
        trace = seen.trace(request_id)
        tops = [span for span in trace.spans if span.parent_id is None]
        is_watched = request_id in (*seen.watched, seen.followed)
        assert [span.service for span in tops] == [APPLICATION if is_watched else ROUTER]
        assert trace.orphans == ()
        services = {span.service for span in trace.spans}
        assert services == {ROUTER, TARGET, DRAFT} | ({APPLICATION} if is_watched else set())


def test_spans_have_the_names_and_kinds_that_are_written_down(seen):
    found = {}
    for span in seen.collector.spans:
        found.setdefault(span.name.split(" ")[0], set()).add(span.kind)
    assert found == KINDS


def test_the_first_rounds_have_children_in_both_engines(seen):
    for request_id in [*seen.well, seen.long]:
        trace = seen.trace(request_id)
        first = rounds(trace)
        indices = [span.attributes["slipstream.round.index"] for span in first]
        assert indices == list(range(len(first)))
        assert 1 < len(first) <= FIRST
        for span in first:
            (verify,) = [at for at in children(trace, span) if at.name == "target.verify"]
            (answer,) = children(trace, verify)
            assert (answer.service, answer.name) == (TARGET, "target.verify")
            parts = {at.name for at in children(trace, answer)}
            assert parts == {"engine.queue", "engine.run"}
            for propose in (at for at in children(trace, span) if at.name == "draft.propose"):
                assert is_answered(trace, propose)


def is_answered(trace, propose):
    """Whether a draft has a span of it; what is copied from the text needs no draft."""
    if propose.attributes["slipstream.proposal.stop_reason"] == "lookup":
        return children(trace, propose) == []
    (answer,) = children(trace, propose)
    parts = {span.name for span in children(trace, answer)} - {"kv.wait"}
    return answer.service == DRAFT and parts == {"engine.queue", "engine.run"}


def test_what_is_not_sampled_is_traced_nowhere(seen):
    assert find_trace(seen.collector.spans, "quiet") is None
    traces = traces_of(seen.collector.spans)
    assert not traces.keys() & set(seen.unsampled.values())
    sampled = {APPLICATION, ROUTER}
    assert all({span.service for span in trace} & sampled for trace in traces.values())


def requests_of(seen):
    return [span for span in seen.collector.spans if span.is_request]


def test_a_lost_draft_shows_in_the_trace_as_a_fallback(seen):
    trace = seen.trace(seen.lost)
    said = trace.request.attributes
    total = sum(said[name] for name in said if name.startswith("slipstream.fallbacks."))
    assert total == seen.num_fallbacks > 0
    assert not trace.request.has_failed


def test_an_error_is_the_status_of_the_requests_span_without_the_prompt(seen):
    refused = [span for span in requests_of(seen) if span.has_failed]
    assert len(refused) == 2
    for span in refused:
        assert span.attributes["error.type"] == "PromptTooLong"
        assert span.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
        (asked,) = [at for at in seen.collector.spans if at.span_id == span.parent_id]
        assert asked.attributes["error.type"] == "PromptTooLong"
        assert asked.has_failed


@pytest.mark.parametrize("secret", [*PROMPT.split(), MARK, TOKEN])
def test_nothing_that_was_said_is_in_any_span(seen, secret):
    for span in seen.collector.spans:
        said = [span.name, span.error, *map(str, span.attributes.values())]
        assert not any(secret in str(text) for text in said)


def test_stages_add_up_to_the_time_of_their_request_and_no_more(seen):
    for name in [*seen.well, seen.long, seen.lost]:
        trace = seen.trace(name)
        spent_ms = sum(trace.stages().values())
        assert 0.95 * trace.request.duration_ms <= spent_ms <= trace.request.duration_ms + 0.01
