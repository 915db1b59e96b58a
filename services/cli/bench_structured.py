"""`slipstream bench structured`: answers by random schemas. Knows only options and printing."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from slipstream.cli.bench_flags import OutputFlags
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.engine import load_async
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, EngineFlags
from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from slipstream.bench.structured.run import TemperatureRecord
    from slipstream.bench.structured.schemas import Drawn
    from slipstream.client.embedded_aio import AsyncEmbedded

_TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class StructuredFlags:
    """Which schemas are drawn, and how many are followed at once."""

    num_schemas: Annotated[int, Option(help="Random JSON schemas.")] = 200
    concurrency: Annotated[int, Option(help="How many are asked for at a time.")] = 8
    seed: Annotated[int, Option(help="Of schemas and of sampling.")] = 0

    def drawn(self) -> "tuple[Drawn, ...]":
        """Raises `InvalidRequest` for none."""
        from slipstream.bench.structured.schemas import draw_schemas

        if self.num_schemas < 1:
            raise InvalidRequest(f"num_schemas is {self.num_schemas}, but must be at least 1")
        return draw_schemas(self.num_schemas, self.seed)


@with_flags
def structured(flags: StructuredFlags, engine: EngineFlags, output: OutputFlags) -> None:
    """Answers that follow random JSON schemas, greedy and sampled, with and without speculation.

    Each is checked by another library. Ends with 1 unless all are valid, end by themselves, and are
    the same with and without speculation.
    """
    from slipstream.bench.structured.figures import is_proved, lines, structured_figures

    check_writable(output)
    drawn = flags.drawn()
    engines = load_async(engine)
    num_batches = -(-len(drawn) // max(flags.concurrency, 1))
    with step_bar(num_batches * len(_TEMPERATURES)) as advance:
        records = asyncio.run(_measure(flags, drawn, engines, advance))
    figures = structured_figures(records, _mask_times(engines, drawn, records))
    for line in lines(figures):
        figures_console().print(line, markup=False, soft_wrap=True)
    write(output, {"environment": _environment(engine, flags), "structured": figures})
    if not is_proved(figures):
        raise typer.Exit(1)


async def _measure(
    flags: StructuredFlags,
    drawn: "Sequence[Drawn]",
    engines: "AsyncEmbedded",
    advance: Callable[[str], None],
) -> "list[TemperatureRecord]":
    from slipstream.bench.structured.run import StructuredRun, run_structured
    from slipstream.client import AsyncClient

    grammars = engines.engine.target.grammars
    if grammars is None:
        raise InvalidRequest("the target can't follow grammars")
    async with AsyncClient.of(engines) as client:
        run = StructuredRun(
            client, grammars.force, time.perf_counter, advance, flags.concurrency, flags.seed
        )
        return await run_structured(run, drawn, _TEMPERATURES)


def _mask_times(
    engines: "AsyncEmbedded", drawn: "Sequence[Drawn]", records: "list[TemperatureRecord]"
) -> list[float]:
    from slipstream.bench.structured.masks import mask_times_us
    from slipstream.bench.structured.run import Arm
    from slipstream.core.grammar import Grammar, GrammarKind

    grammars, stops = engines.engine.target.grammars, engines.engine.facts.stop_token_ids
    assert grammars is not None, "without any, nothing was measured"
    texts = [
        (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema.schema)), text.result.token_ids)
        for record in records
        for schema, text in zip(drawn, record.arms[Arm.PLAIN].texts, strict=True)
    ]
    return mask_times_us(grammars, texts, stops, time.perf_counter)


def _environment(engine: EngineFlags, flags: StructuredFlags) -> dict[str, Any]:
    from slipstream.bench.environment import environment
    from slipstream.models.store.digests import weights_digests
    from slipstream.models.store.resolve import find_local

    target = engine.target or DEFAULT_TARGET
    return {
        **environment(engine.device or "cpu"),
        "command": command(),
        "draft": engine.draft or "glide",
        "num_schemas": flags.num_schemas,
        "concurrency": flags.concurrency,
        "seed": flags.seed,
        "weights_sha256": {target: weights_digests(find_local(target))},
    }
