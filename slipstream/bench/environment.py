"""Environment of figures: versions, processor, threads, code."""

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

from slipstream.models.dtypes import FP8, Q8, choose_dtype
from slipstream.models.loaded import parse_device
from slipstream.models.machine import describe_machine
from slipstream.models.native.library import has_kernels
from slipstream.revision import code_revision

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Return software and machine; `device` is where the models run."""
    is_gpu, machine = device.startswith("cuda"), describe_machine(torch.get_num_threads())
    return {
        **machine,
        "git_commit": code_revision(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": machine["processor"].split("\n")[0],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "num_processors": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if is_gpu else device,
    }


def running_dtype(name: str, device: str) -> str:
    """Return the dtype that runs on a device for this option, which may be `auto`."""
    chosen = choose_dtype(name, parse_device(device), native=has_kernels()).name
    return name if name in (FP8, Q8) else chosen
