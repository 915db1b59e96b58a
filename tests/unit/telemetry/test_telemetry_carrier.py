"""Where a message stands in a trace goes over the wire whole; what is none is no parent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from slipstream.rpc.conversion.convert_common import message_of, value_from_pb
from slipstream.rpc.v1 import common_pb2
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.spans import MAX_TRACESTATE, Carrier, answering, carried, parent_of
from support.telemetry.listening import Listener

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NO_PARENTS = [
    "",
    "00",
    f"00-{TRACE}-{SPAN}",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-01-more",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE[:-1]}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-0x",
]


def context_of(carrier):
    """The span that a carrier is of."""
    return trace.get_current_span(parent_of(carrier)).get_span_context()


@given(
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    state=st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9]{0,20}", fullmatch=True),
            st.from_regex(r"[!-+\--<>-~]{1,20}", fullmatch=True),
        ),
        max_size=8,
        unique_by=lambda member: member[0],
    ),
)
def test_what_is_carried_over_the_wire_arrives_as_it_was(trace_id, span_id, state):
    sampled = TraceFlags(TraceFlags.SAMPLED)
    here = SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=sampled, trace_state=TraceState(state)
    )
    message = message_of(common_pb2.TraceContext, carried(NonRecordingSpan(here)))
    there = context_of(
        value_from_pb(Carrier, common_pb2.TraceContext.FromString(message.SerializeToString()))
    )
    assert (there.trace_id, there.span_id, there.trace_flags) == (trace_id, span_id, sampled)
    assert list(there.trace_state.items()) == state
    assert there.is_remote


@pytest.mark.parametrize("parent", NO_PARENTS)
def test_what_is_no_trace_context_is_no_parent(parent):
    assert parent_of(Carrier(parent)) is None
    heard = Listener()
    with answering(heard.tracer, "answer", Carrier(parent)) as reply:
        assert reply is None
    RequestSpan(heard.telemetry, "request", Carrier(parent), {}).end()
    [only] = heard.spans()
    assert (only.name, only.parent) == ("request", None)


@given(st.text(), st.text())
def test_garbage_never_fails_a_request(parent, state):
    found = parent_of(Carrier(parent, state))
    assert found is None or trace.get_current_span(found).get_span_context().is_valid


@given(st.text())
def test_a_tracestate_that_is_none_or_too_long_costs_nothing_but_itself(state):
    parent = f"00-{TRACE}-{SPAN}-01"
    for said in (state, "a=1," * MAX_TRACESTATE):
        there = context_of(Carrier(parent, said))
        assert f"{there.trace_id:032x}" == TRACE
    assert not context_of(Carrier(parent, "a=" + "1" * MAX_TRACESTATE)).trace_state


@given(
    st.floats(1, 1e6), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5)
)
def test_parts_of_an_answer_lie_within_its_span(start_s, parts):
    heard, now = Listener(), [start_s]
    with heard.caller() as asked, answering(heard.tracer, "answer", asked, lambda: now[0]) as reply:
        for before, length in parts:
            begin = now[0] + before
            now[0] = begin + length
            reply.part("part", begin, now[0])
    whole = heard.span("answer")
    for part in heard.spans("part"):
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time
        assert part.parent.span_id == whole.context.span_id
