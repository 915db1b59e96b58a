"""Environment of figures: versions, processor, threads, code."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import slipstream
from slipstream.config import instruction_limits
from slipstream.models.dtypes import choose_dtype
from slipstream.models.loaded import parse_device
from slipstream.models.native.library import has_kernels
from slipstream.revision import code_revision

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Return software and machine; `device` is where the models run."""
    is_gpu = device.startswith("cuda")
    return {
        "slipstream": slipstream.__version__,
        "git_commit": code_revision(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "limits": instruction_limits(),
        "num_processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if is_gpu else device,
    }


def running_dtype(name: str, device: str) -> str:
    """Return the dtype that runs on a device for this option, which may be `auto`."""
    return choose_dtype(name, parse_device(device), native=has_kernels()).name


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
