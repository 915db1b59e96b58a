"""`slipstream bench kv`: how fast keys and values stream. Knows only options and printing."""

import asyncio
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from typer import Option

from slipstream.cli.bench_flags import OutputFlags
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.flags import with_flags

if TYPE_CHECKING:
    from slipstream.bench.kv import KvPlan

_STEPS = 3


class Encoding(StrEnum):
    """How keys and values travel."""

    RAW = "raw"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class KvFlags:
    """What is streamed. The shape is that of Llama-3-8B's layers."""

    seconds: Annotated[float, Option(help="Of each of the three parts.")] = 10.0
    layers: Annotated[int, Option(help="Layers in a snapshot.")] = 4
    positions: Annotated[int, Option(help="Tokens in a snapshot.")] = 4096
    encoding: Annotated[Encoding, Option(help="int8 is of half the size, and not exact.")] = (
        Encoding.RAW
    )

    def plan(self) -> "KvPlan":
        """Raises `InvalidRequest` for a value out of range."""
        from slipstream.bench.kv import KvPlan
        from slipstream.rpc.kv import KvEncoding

        return KvPlan(
            self.seconds, self.layers, self.positions, encoding=KvEncoding(self.encoding.value)
        )


@with_flags
def kv(flags: KvFlags, output: OutputFlags) -> None:
    """How fast a target's keys and values stream to a reader, and whom that keeps waiting.

    Snapshots are read over and over from a target in a process of its own, while another session
    verifies there; each is measured alone, too. MB are 10^6 bytes of the cache's own.
    """
    check_writable(output)
    plan = flags.plan()
    from slipstream.bench import kv_report
    from slipstream.bench.environment import environment
    from slipstream.bench.kv import measure_kv

    with step_bar(_STEPS) as advance:
        report = asyncio.run(measure_kv(plan, advance=advance))
    console = figures_console()
    console.print(kv_report.streams_table(report, plan.snapshot_bytes))
    console.print()
    console.print(kv_report.rounds_table(report))
    facts = {**environment("cpu"), "command": command(), "plan": asdict(plan)}
    write(output, {"environment": facts, "kv": asdict(report)})
