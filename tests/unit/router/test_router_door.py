"""Laws of the router's door: how many come in, and what they may not ask."""

import pytest

from slipstream.core.errors import CapacityError, NotBuilt
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream_router.limits import Admission
from slipstream_router.servicer import refuse_unknown


def test_places_are_counted_and_given_back():
    door = Admission(max_requests=2)
    with door.place(), door.place():
        with pytest.raises(CapacityError, match="2 requests are running"), door.place():
            pass
        assert door.num_requests == 2
    assert door.num_requests == 0
    with pytest.raises(ZeroDivisionError), door.place():
        raise ZeroDivisionError
    assert door.num_requests == 0


def full_generation():
    return pb.Generation(
        request_id="r",
        prompt=pb.Prompt(
            chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")] * 2)
        ),
        sampling={"logit_bias": {3: 1.0}, "top_k": 0},
        stopping=pb.StoppingCriteria(stop=["x", "y"]),
        speculation=pb.SpeculationOptions(widths=[1, 2]),
    )


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda request: request, "GenerateRequest"),
        (lambda request: request.generation, "Generation"),
        (lambda request: request.generation.sampling, "SamplingParams"),
        (lambda request: request.generation.prompt.chat.messages[1], "ChatMessage"),
    ],
)
def test_a_field_of_another_version_is_refused_by_number_wherever_it_is(place, name):
    request = pb.GenerateRequest(generation=full_generation())
    place(request).MergeFromString(b"\xa0\x06\x01")  # field 100, a number
    request = pb.GenerateRequest.FromString(request.SerializeToString())
    with pytest.raises(NotBuilt, match=f"field 100 of {name} "):
        refuse_unknown(request)
