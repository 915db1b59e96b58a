"""`slipstream bench floors`: steps of a device beside the time that reading weights takes."""

from dataclasses import dataclass

from slipstream.bench.figures import fixed, table
from slipstream.bench.floors import measure_floors
from slipstream.cli.bench_flags import OutputFlags, machine_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.report import figures_console, show_lines
from slipstream.options import option


@dataclass(frozen=True, slots=True)
class FloorFlags:
    """Model with random weights, and where it runs."""

    shape: str = option("llama-3-8b", "Shapes of a published model, or of a config.json's folder.")
    dtype: str = option("auto", "auto, bfloat16, float16 or float32.")
    device: str = option("cuda", "cpu, cuda or cuda:N.")


@with_flags
def floors(flags: FloorFlags, output: OutputFlags) -> None:
    """Time steps by rows and by sessions, beside the time that reading the weights takes."""
    found = measure_floors(flags.shape, dtype=flags.dtype, device=flags.device, numerics="auto")
    output.write({"environment": machine_facts(flags.device), "floors": found})
    shown = table("count", "rows ms", "sessions ms")
    for count, ms in found["rows_ms"].items():
        shown.add_row(str(count), fixed(ms, 2), fixed(found["sessions_ms"].get(count), 2))
    figures_console().print(shown)
    show_lines([f"a plain step takes {found['plain_ms']:.2f} ms, reading {found['floor_ms']:.2f}"])
