"""Environment of figures: versions, processor, threads, code."""

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import slipstream
from slipstream.config import instruction_limits
from slipstream.core.errors import InvalidRequest
from slipstream.models.dtypes import choose_dtype, dtype_name
from slipstream.models.loading import parse_device
from slipstream.models.native.library import has_kernels
from slipstream.revision import code_revision

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Return software and machine; `device` is where the models run."""
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
        "device": _device(device),
    }


def running_dtype(name: str, device: str) -> str:
    """Return the dtype that runs on a device where this one is asked for: `auto` is none."""
    return dtype_name(choose_dtype(name, parse_device(device), native=has_kernels()))


def check_writable(path: Path) -> None:
    """Raise `InvalidRequest` unless a file can be written there, before hours are spent."""
    if path.is_dir():
        raise InvalidRequest(f"{path} is a directory, but a file is to be written")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidRequest(f"{path} can't be written: {path.parent} is no writable directory")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as part:
        try:
            part.write(text)
            part.close()
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _device(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
