"""What was measured is kept from one start to the next; losing it costs time and nothing else.
Threads have cores of their own."""

import json
import os
import threading

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.models import machine
from slipstream.models.dtypes import CPU, DTYPES, choose_dtype
from slipstream.models.machine import Measurements, describe_machine, this_machine
from support.commands import ran_python


def any_value(value):
    return True


def never():
    pytest.fail("measured although it is kept")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "measured" / "this.json"


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache directory of its own, and processes that start: nothing is remembered."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    machine._measurements.cache_clear()
    yield machine._measurements.cache_clear
    machine._measurements.cache_clear()


def test_a_valid_value_is_kept_from_one_start_to_the_next_and_another_is_measured_again(path):
    assert Measurements(path).recall("speed", lambda: [1, 2.5], is_valid=any_value) == [1, 2.5]
    assert Measurements(path).recall("speed", never, is_valid=any_value) == [1, 2.5]
    assert Measurements(path).get("other") is None
    is_number = lambda value: isinstance(value, float)  # noqa: E731
    assert Measurements(path).recall("speed", lambda: 2.0, is_valid=is_number) == 2.0
    assert Measurements(path).recall("speed", never, is_valid=is_number) == 2.0


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b'"measured"', b"{}", b'{"measured": [1]}'),
        *(b"[" * 100_000, b'{"measured": ' + b'{"x":' * 100_000, b"1" * 5_000),
    ],
    ids=range(10),
)
def test_a_file_that_is_broken_is_dropped_with_one_warning_and_written_anew(path, content, caplog):
    path.parent.mkdir()
    path.write_bytes(content)
    measured = Measurements(path)
    assert not path.exists()
    assert measured.recall("speed", lambda: 3, is_valid=any_value) == 3
    assert json.loads(path.read_text())["measured"] == {"speed": 3}
    (warning,) = caplog.messages
    assert f"{path} can't be read and is made anew" in warning


def test_where_nothing_can_be_written_values_hold_for_the_process(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    measured = Measurements(in_the_way / "this.json")
    assert measured.recall("speed", lambda: 3, is_valid=any_value) == 3
    assert measured.recall("speed", never, is_valid=any_value) == 3


def test_of_two_that_write_neither_loses_what_the_other_kept(path):
    one, other = Measurements(path), Measurements(path)
    one.keep("a", 1)
    other.keep("b", 2)
    one.keep("c", 3)
    assert json.loads(path.read_text())["measured"] == {"a": 1, "b": 2, "c": 3}


def test_readers_see_whole_files_while_others_write(path):
    Measurements(path).keep("size", 0)
    done = threading.Event()

    def write():
        for size in range(50):
            Measurements(path).keep("size", [size] * size)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert "size" in json.loads(path.read_text())["measured"]
    writer.join()


def test_this_machine_keeps_in_the_cache_directory_and_forgets_nothing(fresh, tmp_path):
    this_machine().keep("speed", 1)
    fresh()
    assert this_machine().get("speed") == 1
    (file,) = (tmp_path / "measured").iterdir()
    assert json.loads(file.read_text())["machine"]["threads"] == 1


@pytest.mark.parametrize(
    "change", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "threads", "torch"]
)
def test_another_limit_number_of_threads_or_version_is_another_machine(fresh, monkeypatch, change):
    monkeypatch.delenv(change, raising=False)
    this_machine().keep("speed", 1)
    changed = describe_machine(1) | {change: "99"}
    if change.isupper():
        monkeypatch.setenv(change, "avx2")
    else:
        monkeypatch.setattr(machine, "describe_machine", lambda _: dict(changed))
    fresh()
    assert this_machine().get("speed") is None


SCRIPT = """
import json, os, threading
import torch
from slipstream.models import threads as cores
from slipstream.models.torch.arrays import start_torch
from slipstream.models.native.library import NotNative, kernels

torch.set_num_threads(1)  # has torch make a pool besides, for phones, which nothing uses
before = cores._threads()
cores.load_on(lambda load: load(), start_torch, cores.Cores(2, stay=True))
own = threading.get_native_id()
others = sorted(cores._threads() - before)
try:
    has_native = bool(kernels())
except NotNative:
    has_native = False
where = lambda thread: sorted(os.sched_getaffinity(thread))
print(json.dumps([has_native, where(own), *map(where, others)]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_the_threads_of_each_pool_have_cores_of_their_own():
    has_native, own, *others = json.loads(ran_python("-c", SCRIPT).stdout)
    free = sorted(os.sched_getaffinity(0))
    assert own == [free[0]]
    assert others == [[free[1]]] * (1 + has_native)


@pytest.mark.parametrize(("native", "chosen"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_what_every_cpu_reads_or_multiplies_well(native, chosen):
    assert choose_dtype("auto", CPU, native=native) is DTYPES[chosen]
    assert all(choose_dtype(name, CPU, native=native) is DTYPES[name] for name in DTYPES)


@pytest.mark.gpu
def test_fp8_is_refused_where_it_is_not_multiplied(monkeypatch):
    assert choose_dtype("fp8", "cuda") is DTYPES["bfloat16"]
    with pytest.raises(InvalidRequest, match="fp8, which GPUs alone multiply"):
        choose_dtype("fp8", CPU)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 6))
    with pytest.raises(InvalidRequest, match=r"capability 8\.6, and 8\.9 is the least"):
        choose_dtype("fp8", "cuda")


@pytest.mark.parametrize("name", ["", "half", "int8", "torch.float32", "AUTO"])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(InvalidRequest, match="one of auto, bfloat16, float16, float32"):
        choose_dtype(name, CPU)
