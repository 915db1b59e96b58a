"""Requests on an engine's thread, whatever the event loop does meanwhile."""

import time

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.verifying.request import TargetRequest
from slipstream.verifying.request_queue import RequestQueue
from slipstream.verifying.schedule import Schedule, StepBudget
from support.models import tiny


def request_of(num_tokens):
    sequence = TokenSequence(Session("s", num_tokens, 9), tiny.tokens(num_tokens))
    return TargetRequest(sequence, Proposal())


def test_a_request_that_takes_a_session_over_never_shares_a_step_with_its_predecessor():
    schedule = Schedule(StepBudget(max_tokens=16, tile=8))
    queue = RequestQueue(
        tiny.local_target(tiny.causal()), schedule, max_waiting=9, clock=time.perf_counter
    )
    old, new = request_of(60), request_of(40)
    queue.add(old)
    assert queue.run(has_room=False, has_company=False).num_tokens == 16
    drop = queue._drop

    def drop_too_early():
        drop()
        old.is_dropped = True
        queue.add(new)

    queue._drop = drop_too_early
    assert queue.run(has_room=False, has_company=False).num_sessions == 1
    assert (old in schedule, new in schedule) == (True, False)
    queue._drop = drop
    while not new.is_done:
        assert queue.run(has_room=False, has_company=False).num_sessions == 1
    assert not old.is_done
    assert new.num_cached == 32
    assert new.result().tokens
