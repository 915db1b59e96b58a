"""Keys and values as bytes: what goes in comes out, and nothing that is broken gets through."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.rpc import kv
from slipstream.rpc.kv import (
    KvDtype,
    KvEncoding,
    KvFormat,
    KvFrame,
    element_type,
    frame_from_bytes,
    pack,
    unpack,
)
from slipstream.rpc.v1.target_pb2 import StreamKvResponse

SOURCE = kv.KvStreamSource("a session", "a process")
FORM = KvFormat((7, 2), num_kv_heads=3, head_dim=16, dtype=KvDtype.BFLOAT16)
DTYPES = list(KvDtype)


def values(form=FORM, count=5, seed=0):
    shape = (len(form.layers), 2 * form.num_kv_heads, count, form.head_dim)
    return np.random.default_rng(seed).normal(size=shape).astype(element_type(form.dtype))


def frame(form=FORM, start=4, count=5):
    return KvFrame(start, count, bytes(pack(values(form, count), form.encoding)))


def bits(array):
    return array.view(f"i{array.itemsize}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_keys_and_values_arrive_bit_for_bit(dtype):
    form, sent = replace(FORM, dtype=dtype), values(replace(FORM, dtype=dtype))
    bits(sent)[0, 0, 0, :3] = [0x7FC1, -128, 1]  # also bits that are no numbers
    got = unpack(KvFrame(0, 5, pack(sent, form.encoding)), form)
    assert got.dtype == element_type(dtype)
    assert np.array_equal(bits(got), bits(sent))


def test_the_raw_payload_is_little_endian_and_in_the_order_of_the_axes():
    form = KvFormat((0,), num_kv_heads=1, head_dim=2, dtype=KvDtype.FLOAT32)
    sent = np.array([[[[1.0, 2.0]], [[3.0, -0.5]]]], np.float32)
    assert pack(sent, form.encoding).hex() == "0000803f00000040" + "00004040000000bf"


@pytest.mark.parametrize("dtype", DTYPES)
def test_8_bit_values_are_within_half_a_step_of_what_was_sent(dtype):
    form = replace(FORM, dtype=dtype, encoding=KvEncoding.INT8)
    sent = values(form)
    sent[1, 2] = 0  # zeros stay zeros
    got = unpack(KvFrame(0, 5, pack(sent, form.encoding)), form)
    step = np.abs(sent.astype(np.float32)).max(-1, keepdims=True) / 127
    assert (np.abs(got - sent.astype(np.float32)) <= step * 0.501).all()


@pytest.mark.parametrize("encoding", list(KvEncoding))
def test_the_largest_payload_is_as_large_as_the_bound_allows(encoding):
    form = KvFormat((0, 1), num_kv_heads=8, head_dim=128, dtype=KvDtype.BFLOAT16, encoding=encoding)
    size = form.max_positions * form.bytes_per_position
    assert size <= kv.MAX_PAYLOAD_BYTES < size + form.bytes_per_position
    huge = replace(form, layers=tuple(range(1000)))  # a position of it travels alone
    assert huge.bytes_per_position > kv.MAX_PAYLOAD_BYTES
    assert huge.max_positions == 1


@pytest.mark.parametrize("encoding", list(KvEncoding))
def test_a_frame_travels_as_its_message_and_comes_back_the_same(encoding):
    form = replace(FORM, encoding=encoding)
    wire = kv.frame_to_bytes(SOURCE, form, frame(form))
    assert frame_from_bytes(wire, SOURCE, form) == frame(form)
    message = StreamKvResponse.FromString(wire)
    assert message.payload == frame(form).payload
    assert message.SerializeToString() == wire


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("session_id", "x", "session x, but a session was expected"),
        ("incarnation", "x", "incarnation x, but a process was expected"),
        ("num_kv_heads", 4, "num_kv_heads 4, but 3 was expected"),
        ("head_dim", 8, "head_dim 8, but 16 was expected"),
        ("dtype", 2, "dtype float16, but bfloat16 was expected"),
        ("dtype", 0, "dtype None, but bfloat16 was expected"),
        ("dtype", 77, "is 77, but must be one of"),
        ("encoding", 2, "encoding int8, but raw was expected"),
        ("encoding", 77, "is 77, but must be one of"),
        ("count", 0, "0 positions"),
        ("count", 6, "payload bytes 1920, but 2304 was expected"),
        ("count", 2**32 - 1, "payload bytes 1920, but"),
        ("payload", b"", "payload bytes 0, but 1920 was expected"),
        ("payload", bytes(1920), "CRC-32C"),
        ("crc32c", 1, "CRC-32C 1, but"),
    ],
)
def test_a_message_that_is_not_as_agreed_is_refused_naming_both_values(field, value, sentence):
    message = StreamKvResponse.FromString(kv.frame_to_bytes(SOURCE, FORM, frame()))
    setattr(message, field, value)
    with pytest.raises(InvalidRequest, match=sentence):
        frame_from_bytes(message.SerializeToString(), SOURCE, FORM)


def test_layers_in_another_order_are_refused():
    message = kv.frame_to_bytes(SOURCE, replace(FORM, layers=(2, 7)), frame())
    with pytest.raises(InvalidRequest, match=r"layers \(2, 7\), but \(7, 2\) was expected"):
        frame_from_bytes(message, SOURCE, FORM)


WIRE = kv.frame_to_bytes(SOURCE, FORM, frame())


@pytest.mark.parametrize(
    ("wire", "sentence"),
    [
        (b"", "session , but a session was expected"),
        (b"no message", "10 bytes can't be parsed"),
        (WIRE[:-1], "can't be parsed"),
        (WIRE[:-900], "can't be parsed"),
        (WIRE[:9], "can't be parsed"),
        (b"\x0b" + WIRE, "can't be parsed"),  # a group
        (b"\x80" * 11 + WIRE, "can't be parsed"),  # a number of more than 64 bits
        (WIRE + WIRE, "two payloads"),
        (WIRE + bytes(kv.MAX_HEAD_BYTES), "bytes beside its payload, but may have up to 262144"),
        (b"\x20\x05" * kv.MAX_HEAD_BYTES + WIRE, "bytes beside its payload, but may have up to"),
    ],
)
def test_bytes_that_are_no_slice_are_refused(wire, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        frame_from_bytes(wire, SOURCE, FORM)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 3e38])
def test_a_scale_that_is_none_is_refused(scale):
    form = replace(FORM, encoding=KvEncoding.INT8)
    good = frame(form)
    bad = np.float32(scale).tobytes() + good.payload[4:]
    with pytest.raises(InvalidRequest, match="scale"):
        unpack(replace(good, payload=bad), form)
