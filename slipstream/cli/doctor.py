"""`slipstream doctor`: this machine and this installation, for reports of faults."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer

import slipstream
from slipstream.cli.engine import shorten_spins
from slipstream.config import NATIVE_VARIABLE, environment_of, instruction_limits, native_kernels

Facts = dict[str, Any]

_PACKAGES = (
    *("grpcio", "protobuf", "torch", "transformers", "tokenizers", "numpy", "safetensors"),
    *("gguf", "llguidance", "redis", "ray", "opentelemetry-sdk", "fastapi", "uvicorn"),
)
_FLAGS = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "amx_int8", "amx_bf16"),
)
"""CPU flags that the kernels of x86-64 use, as Linux names them."""
_ABSENT = "not installed"
_VARIABLES = ("SLIPSTREAM_", "ONEDNN_", "ATEN_CPU", "OMP_NUM", "MKL_NUM", "CUDA_VISIBLE")


def doctor() -> None:
    """Show processor, kernels, GPUs and versions, for a report of a fault.

    Nothing is sent. The home directory is shown as ~, and secrets are not shown.
    """
    for title, part in _sections():
        typer.echo(title)
        for name, value in part.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"  {name:<18}{shown if shown != '' else 'none'}")


def _sections() -> Iterator[tuple[str, Facts]]:
    python = f"{platform.python_version()} ({_tilde(sys.executable)})"
    yield (
        "slipstream",
        {"version": slipstream.__version__, "python": python, "system": platform.platform()},
    )
    yield "processor", _processor()
    if _version("ml_dtypes") != _ABSENT:
        yield "engine", _engine()
    if _version("torch") != _ABSENT:
        shorten_spins()
        yield from _torch()
    yield "environment", {key: _tilde(value) for key, value in environment_of(_VARIABLES).items()}
    yield "packages", {name: _version(name) for name in _PACKAGES}


def _processor() -> Facts:
    info = Path("/proc/cpuinfo")  # installations of a router have none of the models' modules
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    fields = dict(reversed([line.split(":", 1) for line in lines if ":" in line]))
    known = {name.strip(): value.strip() for name, value in fields.items()}
    flags = known.get("flags", known.get("Features", "")).split()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "name": known.get("model name", platform.processor() or platform.machine()),
        "threads": os.cpu_count(),
        "threads allowed": allowed,
        "instructions": [flag for flag in _FLAGS if flag in flags],
    }


def _engine() -> Facts:
    from slipstream.models.dtypes import AUTO, CPU, choose_dtype
    from slipstream.models.machine import has_torch
    from slipstream.models.native.library import PATH, has_kernels, kernels

    native = has_kernels()
    if native:
        why = f"native kernels of set {kernels()}, the best that this processor has"
    elif PATH.is_file():
        why = f"torch: {NATIVE_VARIABLE} is {native_kernels()}"
    else:
        why = "torch: no native library was built; it takes a C++ compiler when installing"
    others = "transformers' forward" if has_torch() else "nothing without slipstream[torch]"
    return {
        "kernels": why,
        "dtype auto": f"{choose_dtype(AUTO, CPU, native=native).name} on {CPU}",
        "forwards are": f"as recorded for known models; others are compared with {others}",
        "limits": [f"{name}={value}" for name, value in instruction_limits().items()],
    }


def _torch() -> Iterator[tuple[str, Facts]]:
    import torch

    from slipstream.models.dtypes import AUTO, choose_dtype

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    about = {"devices": names, "torch built for": torch.version.cuda or "no CUDA"}
    yield "GPU", about | ({"dtype auto": choose_dtype(AUTO, "cuda").name} if names else {})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _ABSENT


def _tilde(text: str) -> str:
    return text.replace(str(Path.home()), "~")
