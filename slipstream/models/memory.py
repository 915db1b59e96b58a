"""Memory for keys and values, weights and workspace: accounted before anything is served."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.tree import MAX_NODES
from slipstream.models.dtypes import CPU
from slipstream.models.kv.pool import BLOCK_SIZE, HOST, Buffers, KvLayout, round_up
from slipstream.options import check_bounds, option

AUTO = "auto"
_AUTO_SHARES = 0.25, 0.85
"""Shares of the free memory for `auto`: on a CPU, where other processes need some, and on a GPU."""
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_GROUPS = Path("/sys/fs/cgroup")
_GROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Limit and use of the process's control group, in versions 2 and 1 of their interface."""
_SIZE = re.compile(r"(\d{1,18})(\.\d+)?\s*(B|KiB|MiB|GiB|TiB)?")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of a process's weights, of its pages of keys and values, and of what a step needs."""

    weight_bytes: int
    num_pages: int
    page_bytes: int
    workspace_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    def account(self) -> dict[str, int]:
        """Bytes by what they are for."""
        return {
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "workspace_bytes": self.workspace_bytes,
        }

    def __str__(self) -> str:
        total = sum(self.account().values())
        return (
            f"weights {shown(self.weight_bytes)}, keys and values {shown(self.kv_bytes)}"
            f" ({self.num_pages} pages), workspace {shown(self.workspace_bytes)},"
            f" {shown(total)} in all"
        )


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Limits of a draft's memory for its own keys and values, and for those that it mirrors of a
    target: both grow with the same tokens, so that one budget covers them in pages of both.

    `budget` is as in `num_pages`; no more is taken than `max_sessions` sessions of the longest
    length can use. `is_mirroring` is set if the target's keys are copied here.
    """

    budget: str = "0.25"
    max_sessions: int = 64
    is_mirroring: bool = False

    def plan(
        self,
        layout: KvLayout,
        *,
        weight_bytes: int,
        workspace_bytes: int,
        max_tokens: int,
        mirrored: KvLayout | None = None,
    ) -> MemoryPlan:
        """Return a plan in pages of `layout`, with as many tokens of what a target is read for.

        The model takes so many bytes besides keys and values; its longest session has `max_tokens`.
        Raises as `num_pages` does.
        """
        page_bytes = layout.bytes_per_page
        if self.is_mirroring and mirrored:
            page_bytes += mirrored.bytes_per_page
        longest = round_up(max_tokens + MAX_NODES, BLOCK_SIZE) // BLOCK_SIZE
        count = num_pages(
            self.budget,
            layout.device,
            page_bytes,
            workspace_bytes=workspace_bytes,
            most=self.max_sessions * longest,
        )
        return MemoryPlan(weight_bytes, count, page_bytes, workspace_bytes)


def check_budget(budget: str) -> None:
    """Raise `InvalidRequest` unless it is "auto", a share of what is free, or a size."""
    if budget != AUTO:
        _parse(budget)


def num_pages(
    budget: str, device: str, page_bytes: int, *, workspace_bytes: int = 0, most: int | None = None
) -> int:
    """Pages that fit a budget: a size ("2GiB"), a share of the free memory ("0.5"), or "auto".

    A share leaves room for the workspace. No more than `most`, which is all that could be used.
    Raises `InvalidRequest` for what is no budget, `CapacityError` for less than a page.
    """
    size = budget_bytes(budget, device, workspace_bytes=workspace_bytes)
    count = size // page_bytes
    if count < 1:
        raise CapacityError(
            f"a budget of {budget} is {shown(size)} for keys and values, but a page takes"
            f" {shown(page_bytes)}"
        )
    return count if most is None else min(count, most)


def budget_bytes(budget: str, device: str, *, workspace_bytes: int = 0) -> int:
    """Bytes that a budget means on this device now. Raises `InvalidRequest` for what is none."""
    value: int | float = _AUTO_SHARES[device != CPU] if budget == AUTO else _parse(budget)
    if isinstance(value, int):
        return value
    return int(max(free_bytes(device) - workspace_bytes, 0) * value)


def free_bytes(device: str) -> int:
    """Bytes that a process may still take on a device."""
    if device != CPU:
        import torch

        torch.cuda.empty_cache()  # what loading has used and left
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available(), _group_bytes())


def shown(size: int) -> str:
    """Return a number of bytes as text."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f} {unit}"
    return f"{size} B"


def _parse(budget: str) -> int | float:
    found = _SIZE.fullmatch(budget.strip())
    if not found:
        raise InvalidRequest(
            f"a memory budget is {budget!r}, but must be auto, a share such as 0.5 or a size such"
            " as 2GiB"
        )
    whole, fraction, unit = found.groups()
    value = float(whole + (fraction or ""))
    if unit is None and fraction is not None:
        if not 0 < value < 1:
            raise InvalidRequest(
                f"a memory budget is the share {budget}, but must be between 0 and 1"
            )
        return value
    return int(value * _UNITS[unit or ""])


def _available() -> int:
    """Return what Linux has available without swapping; elsewhere all that the machine has."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.is_file() else []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_bytes() -> int:
    """Return what the process's control group leaves, where there is a limit."""
    for limit, used in _GROUP_FILES:
        try:
            left = int((_GROUPS / limit).read_text("ascii")) - int(
                (_GROUPS / used).read_text("ascii")
            )
        except (OSError, ValueError):  # no such group, or "max"
            continue
        return max(left, 0)
    return 1 << 62


def wait_for(device: str) -> None:
    """Wait for the end of what a device computes; on a CPU nothing is left to wait for."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def buffers_for(device: str) -> Buffers:
    """Return the allocator of a device, as torch names it."""
    if device == CPU:
        return HOST
    from slipstream.models.torch.arrays import TorchBuffers

    return TorchBuffers(device)


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Element type, device, threads and memory of an engine."""

    dtype: str = option(
        "auto",
        "Element type of the weights: auto, bfloat16, float16, float32, or 8 bits: q8 (CPUs) or"
        " fp8 (GPUs).",
    )
    device: str = option("cpu", "Device of the model: cpu, cuda or cuda:N.")
    threads: int | None = option(
        None, "CPU threads to compute with; unset, one for each core.", least=1
    )
    pin_threads: bool = option(
        False, "Keep each thread on a core of its own; for cores that services share."
    )
    kv_memory: str = option(
        AUTO, "Memory for keys and values: a size such as 2GiB, a share of what is free, or auto."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_budget(self.kv_memory)
