"""The distribution of threads that stay: two of one pool never share a core."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import IMPORT_PATH

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, os, threading
import torch
from slipstream.models import cores
from slipstream.models.native.library import NotNative, kernels

torch.set_num_threads(1)  # has torch make a pool besides, for phones, which nothing uses
before = cores._threads()
cores.load_on(lambda load: load(), cores.start_torch, cores.Cores(2, stay=True))
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
@pytest.mark.parametrize("native", ["", "off"])
def test_the_threads_of_each_pool_have_cores_of_their_own(native):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, "SLIPSTREAM_NATIVE": native},
        capture_output=True,
        text=True,
        check=True,
    )
    has_native, own, *others = json.loads(run.stdout)
    free = sorted(os.sched_getaffinity(0))
    assert own == [free[0]]
    assert others == [[free[1]]] * (1 + has_native)
