"""Laws of the fields that are counted before a message is parsed."""

from contextlib import suppress
from random import Random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fuzz import messages
from slipstream.core.errors import InvalidRequest
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.wire import NUMBERS, check_num_fields

LIMIT = 100
KIND = pb.GenerateRequest.DESCRIPTOR


def prompt(**content):
    return pb.GenerateRequest(generation=pb.Generation(prompt=pb.Prompt(**content)))


def chat(num_messages):
    messages = [pb.ChatMessage(role="user", content="x" * 50)] * num_messages
    return prompt(chat=pb.ChatMessages(messages=messages)).SerializeToString()


def repeated(data, times=1000):
    """Bytes as often as said, as the chat of a prompt."""
    inner = len(data) * times
    assert inner < 1 << 14
    for number in (2, 3, 1):  # chat, prompt, generation
        data = bytes([number << 3 | 2]) + bytes([inner & 127 | 128, inner >> 7]) + data * times
        inner, times = len(data), 1
    return data


def test_fields_up_to_the_limit_pass_and_one_more_is_refused_wherever_it_is():
    num_messages = (LIMIT - 3) // 3
    check_num_fields(chat(num_messages), KIND, LIMIT)
    with pytest.raises(InvalidRequest, match="more than 100 fields"):
        check_num_fields(chat(num_messages + 1), KIND, LIMIT)


@pytest.mark.parametrize(
    "data",
    [
        repeated(b"\x0a\x00"),
        repeated(b"\xf8\x01\x01"),
        repeated(b"\xfb\x01\xfc\x01"),
        b"\x0a\x00" * 1000,
        pb.GenerateRequest(generation={"stopping": {"stop": [""] * 1000}}).SerializeToString(),
    ],
    ids=["empty messages", "unknown fields", "groups", "the same field", "empty strings"],
)
def test_many_fields_in_few_bytes_are_refused(data):
    with pytest.raises(InvalidRequest, match="more than 100 fields"):
        check_num_fields(data, KIND, LIMIT)


def test_numbers_of_a_list_are_cheaper_than_fields_and_not_free():
    few = prompt(token_ids=pb.TokenIds(ids=[300] * NUMBERS * (LIMIT - 10)))
    many = prompt(token_ids=pb.TokenIds(ids=[300] * NUMBERS * LIMIT))
    check_num_fields(few.SerializeToString(), KIND, LIMIT)
    with pytest.raises(InvalidRequest, match="more than 100 fields"):
        check_num_fields(many.SerializeToString(), KIND, LIMIT)


def test_a_group_hides_nothing_that_follows_it():
    with pytest.raises((InvalidRequest, DecodeError)):
        check_num_fields(b"\xfb\x01" + b"\x0a\xff\x7f" + b"\x0a\x00" * 1000, KIND, LIMIT)


def test_every_message_that_can_be_parsed_can_be_counted():
    random = Random(0)
    for _ in range(500):
        data = messages.random_message(KIND, random).SerializeToString()
        check_num_fields(data, KIND, max(len(data) - 1, 0))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_found_broken_or_left_to_the_parser(data):
    with suppress(DecodeError, InvalidRequest):
        check_num_fields(data, KIND, 10)
