"""The readings as a table for people. The numbers are made elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from slipstream.bench.leaks.plan import PARTS
from slipstream.bench.report import fixed, table

_SHOWN = {0: "start", PARTS // 4: "25 %", PARTS // 2: "50 %", 3 * PARTS // 4: "75 %", PARTS: "end"}


def leaks_table(figures: Mapping[str, Any]) -> Table:
    """One row each at the start, after every quarter, and at the end; nothing runs meanwhile."""
    shown = table(
        "at",
        "sessions",
        "resident MiB",
        "kept for prefixes MiB",
        "held by sessions MiB",
        "held by drafts MiB",
        "objects",
        "tasks",
        "threads",
        "files",
    )
    for part, name in _SHOWN.items():
        at = figures["moments"][part]
        sizes = ("resident_bytes", "prefix_kv_bytes", "session_kv_bytes", "draft_kv_bytes")
        counts = ("num_objects", "num_tasks", "num_threads", "num_files")
        shown.add_row(
            name,
            str(at["num_sessions"]),
            *(fixed(at[size] / (1 << 20), 1) for size in sizes),
            *(str(at[count]) for count in counts),
        )
    return shown
