"""The dtype is the one that this processor multiplies fastest; what can't work is refused."""

import logging

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.models import dtypes
from slipstream.models.dtypes import CPU, DTYPES, FLOAT32, choose_dtype
from slipstream.models.machine import Measurements
from slipstream.models.numerics import dtype_times
from slipstream.models.torch_arrays import numpy_dtype, torch_dtype

KEPT = "dtype_seconds"


@pytest.fixture(autouse=True)
def nothing_said():
    """A process that has warned of no dtype yet."""
    dtypes._warn.cache_clear()


def machine(**seconds):
    """Measurements that say how long products take in bfloat16, float16 and float32."""
    measured = Measurements(None)
    measured.keep(KEPT, seconds)
    return measured


def modern(**changes):
    return machine(**{"bfloat16": 0.001, "float16": 0.004, "float32": 0.003, **changes})


@pytest.mark.parametrize(
    ("bfloat16", "float32", "chosen"),
    [
        (0.001, 0.003, "bfloat16"),
        (0.003, 0.003, "bfloat16"),
        (0.0032, 0.003, "bfloat16"),  # hardly slower, for half the memory
        (0.004, 0.003, "float32"),
        (None, 0.003, "float32"),
    ],
)
def test_auto_is_bfloat16_unless_float32_is_clearly_faster(bfloat16, float32, chosen, caplog):
    times = machine(bfloat16=bfloat16, float16=0.0001, float32=float32)
    assert choose_dtype("auto", CPU, machine=times) is DTYPES[chosen]
    assert caplog.records == []


def test_a_slow_dtype_works_with_one_warning_that_names_the_faster_one(caplog):
    times = machine(bfloat16=0.003, float16=0.004, float32=0.003)
    assert all(choose_dtype(name, CPU, machine=times) is DTYPES[name] for name in DTYPES)
    assert caplog.records == []
    assert choose_dtype("float16", CPU, machine=modern()) is DTYPES["float16"]
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    said = "dtype float16 is 4.0 times slower than bfloat16 on this CPU: use auto"
    assert warning.getMessage() == said


@pytest.mark.parametrize("has_kernels", [True, False])
def test_what_only_torch_multiplies_slowly_is_warned_of_there(has_kernels, caplog, monkeypatch):
    monkeypatch.setattr(dtypes, "has_kernels", lambda: has_kernels)
    dtypes._warn.cache_clear()
    assert choose_dtype("float32", CPU, machine=modern(float32=0.01)) is FLOAT32
    assert len(caplog.records) == (not has_kernels)


def test_a_dtype_that_the_processor_cant_multiply_is_refused_with_one_that_it_can():
    with pytest.raises(InvalidRequest, match=r"float16, which this CPU can't .* use bfloat16$"):
        choose_dtype("float16", CPU, machine=modern(float16=None))


@pytest.mark.parametrize("name", ["", "half", "int8", "torch.float32", "AUTO"])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(InvalidRequest, match="one of auto, bfloat16, float16, float32"):
        choose_dtype(name, CPU, machine=modern())


TIMES = {"bfloat16": 0.001, "float16": 0.001, "float32": 0.003}
BROKEN = [None, "bfloat16", [0.001, 0.002, 0.003], {}, {"bfloat16": 0.001, "float32": 0.003}]
BROKEN += [{**TIMES, "int4": 0.001}, {**TIMES, "float32": None}, {**TIMES, "float32": 0.0}]
BROKEN += [{**TIMES, "bfloat16": at} for at in (-1.0, "fast", True)]


@pytest.mark.parametrize("kept", BROKEN)
def test_what_is_kept_and_no_table_of_times_is_measured_again(kept, monkeypatch):
    again = {"bfloat16": 0.009, "float16": 0.009, "float32": 0.001}
    monkeypatch.setattr(dtype_times, "_measure", lambda: again)
    measured = Measurements(None)
    measured.keep(KEPT, kept)
    assert choose_dtype("auto", CPU, machine=measured) is FLOAT32
    assert measured.get(KEPT) == again


def test_what_is_measured_here_is_a_table_of_times():
    measured = Measurements(None)
    chosen = choose_dtype("auto", CPU, machine=measured)
    assert chosen.name in ("bfloat16", "float32")
    assert dtype_times._are_times(measured.get(KEPT))


@pytest.mark.parametrize("name", DTYPES)
def test_torch_has_a_dtype_of_the_same_name_and_size(name):
    theirs = torch_dtype(DTYPES[name])
    assert str(theirs) == f"torch.{DTYPES[name].name}" == f"torch.{name}"
    assert theirs.itemsize == DTYPES[name].itemsize
    assert numpy_dtype(theirs) is DTYPES[name]
