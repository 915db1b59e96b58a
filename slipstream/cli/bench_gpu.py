"""`slipstream bench graphs` and `slipstream bench floors`: what a GPU computes, and how fast."""

from dataclasses import dataclass

import typer

from slipstream.bench.figures import fixed, table
from slipstream.bench.gpu.floors import measure_floors
from slipstream.bench.gpu.graph_checks import check_graphs, faults
from slipstream.cli.bench_flags import ModelFlags, OutputFlags, machine_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.report import figures_console, show_lines
from slipstream.exit_codes import FAILED
from slipstream.models.loaded import parse_device
from slipstream.options import option


@with_flags
def graphs(models: ModelFlags, output: OutputFlags) -> None:
    """Compare captured forwards and chains with the same without capture. Exits with 1 where they
    differ.
    """
    models.check()
    parse_device(models.device)
    found = check_graphs(models.target, models.draft, dtype=models.dtype, device=models.device)
    output.write({"environment": machine_facts(models.device), "graphs": found})
    wrong = list(faults(found))
    show_lines([*wrong, f"{len(wrong)} differ of {len(found['forwards'])} forwards and all graphs"])
    if wrong:
        raise typer.Exit(FAILED)


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
