"""Makes the packages of a virtual environment small, and their starts short.

`/app/bin/python3 trim.py` runs in the environment. Packages lose their tests and what a compiler or
a type checker reads, shared objects their symbols. The bytecode that is made is of modules that
services and commands import when they start; the rest is compiled when it is imported. With torch
or Ray only the tests go, and all modules have bytecode: torch compiles with headers at run time.
"""

import compileall
import contextlib
import importlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode

STARTS = """
fastapi gguf google.rpc.error_details_pb2 google_crc32c grpc._channel grpc.aio
grpc_health.v1._async grpc_health.v1.health_pb2_grpc grpc_reflection.v1alpha.reflection
grpc_status.rpc_status huggingface_hub._snapshot_download huggingface_hub.hf_api jinja2.ext
jinja2.sandbox llguidance ml_dtypes numpy.random
opentelemetry.exporter.otlp.proto.grpc.metric_exporter
opentelemetry.exporter.otlp.proto.grpc.trace_exporter
opentelemetry.exporter.otlp.proto.http.metric_exporter
opentelemetry.exporter.otlp.proto.http.trace_exporter opentelemetry.exporter.prometheus
opentelemetry.trace.propagation.tracecontext redis.asyncio rich.markdown rich.progress rich.table
safetensors.numpy starlette.middleware.cors tokenizers typer._adapters typer.rich_utils
uvicorn.lifespan.off uvicorn.lifespan.on uvicorn.protocols.http.auto
uvicorn.protocols.http.h11_impl
"""
"""Modules that services and commands import; an image need not have them all."""
UNREAD = ("*.a", "*.c", "*.exe", "*.h", "*.pxd", "*.pyi", "numpy/distutils", "numpy/f2py")
PACKAGES = Path(sysconfig.get_path("purelib"))
BY_HASH = PycInvalidationMode.UNCHECKED_HASH


def remove(*patterns: str) -> None:
    """Remove files and folders by patterns of their paths."""
    for path in [path for pattern in patterns for path in PACKAGES.rglob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it was in a folder that is gone


def pack(name: str) -> None:
    """Put a package into an archive that Python imports it from, a third as large."""
    if (PACKAGES / name).exists():
        shutil.make_archive(str(PACKAGES / name), "zip", PACKAGES, name)
        shutil.rmtree(PACKAGES / name)
        (PACKAGES / f"{name}.pth").write_text(f"{name}.zip\n")


def strippable() -> Iterator[Path]:
    """Shared objects, but for packages with a folder of libraries: `patchelf` changed these."""
    for path in PACKAGES.rglob("*.so"):
        package = path.relative_to(PACKAGES).parts[0]
        if not package.endswith(".libs") and not (PACKAGES / f"{package}.libs").exists():
            yield path


def main() -> None:
    remove("tests")
    if find_spec("torch") or find_spec("ray"):
        compileall.compile_dir(PACKAGES, quiet=2, invalidation_mode=BY_HASH)
        return
    remove(*UNREAD)
    pack("pip")
    subprocess.run(["strip", "--strip-unneeded", *strippable()], check=True)
    sys.dont_write_bytecode = True
    for name in STARTS.split():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for module in [*sys.modules.values()]:
        source = getattr(module, "__file__", None) or ""
        if source.startswith(str(PACKAGES)) and source.endswith(".py"):
            compileall.compile_file(source, quiet=1, invalidation_mode=BY_HASH)


if __name__ == "__main__":
    main()
