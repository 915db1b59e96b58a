"""Asks for texts by random schemas, with and without speculation, and looks at each.

The arms of a batch of schemas run one after the other, so that whatever else the machine does meets
all of them alike. Prints nothing.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any

from slipstream.bench.structured.schemas import Drawn
from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.results import Result
from slipstream.core.timing import Clock
from slipstream.core.types import FinishReason, SamplingParams


class Arm(StrEnum):
    """How the same text is asked for."""

    PLAIN = "plain"
    """Without speculation."""
    FORCED = "forced"
    """With it, and with the tokens that the grammar forces."""
    UNFORCED = "unforced"
    """With what drafts and copies propose alone."""


@dataclass(frozen=True, slots=True)
class StructuredRun:
    """What is asked, and of whom.

    `force` says whether the engine tells forced tokens from the next request on; `clock` is in
    seconds, and `advance` is told of every batch.
    """

    client: AsyncClient
    force: Callable[[bool], None]
    clock: Clock
    advance: Callable[[str], None]
    concurrency: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidRequest(f"concurrency is {self.concurrency}, but must be at least 1")


@dataclass(frozen=True, slots=True)
class Text:
    """An answer, and what is wrong with it; nothing, if all is well."""

    result: Result
    wrong: str | None


@dataclass(slots=True)
class ArmRecord:
    """All answers of one arm at one temperature, in order, and the seconds of its batches."""

    texts: list[Text] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class TemperatureRecord:
    """What every arm gave at one temperature."""

    temperature: float
    arms: dict[Arm, ArmRecord]


def validator(schema: dict[str, Any]) -> Any:
    """What tells of a value why the schema refuses it.

    Raises `InvalidRequest` where jsonschema is not installed.
    """
    try:
        library = import_module("jsonschema")
    except ImportError:
        raise InvalidRequest(
            "checking answers needs jsonschema: pip install 'slipstream[dev]'"
        ) from None
    return library.Draft202012Validator(schema)


def fault(drawn: Drawn, result: Result) -> str | None:
    """What is wrong with an answer; None for nothing."""
    if result.finish_reason is not FinishReason.STOP:
        return f"it ended by {result.finish_reason}, not by a stop token"
    try:
        value = json.loads(result.text)
    except ValueError as error:
        return f"it is no JSON ({error})"
    errors = [error.message for error in validator(drawn.schema).iter_errors(value)]
    return errors[0] if errors else None


async def run_structured(
    run: StructuredRun, drawn: Sequence[Drawn], temperatures: Sequence[float]
) -> list[TemperatureRecord]:
    """All schemas at all temperatures, batch by batch."""
    for schema in drawn[:1]:
        validator(schema.schema)  # refused before anything runs
    await _batch(run, drawn[: run.concurrency], 0.0, Arm.FORCED)  # warm-up
    records = []
    for temperature in temperatures:
        record = TemperatureRecord(temperature, {arm: ArmRecord() for arm in Arm})
        records.append(record)
        for start in range(0, len(drawn), run.concurrency):
            batch = drawn[start : start + run.concurrency]
            for arm, kept in record.arms.items():
                began = run.clock()
                results = await _batch(run, batch, temperature, arm)
                kept.seconds += run.clock() - began
                pairs = zip(batch, results, strict=True)
                kept.texts += [Text(result, fault(schema, result)) for schema, result in pairs]
            run.advance(f"temperature {temperature:g}")
    return records


async def _batch(
    run: StructuredRun, batch: Sequence[Drawn], temperature: float, arm: Arm
) -> list[Result]:
    run.force(arm is Arm.FORCED)
    mode = Mode.OFF if arm is Arm.PLAIN else Mode.FORCED
    sampling = SamplingParams(temperature=temperature, seed=run.seed)
    asked = [
        run.client.generate(
            schema.prompt,
            json_schema=schema.schema,
            max_tokens=schema.longest + 1,
            sampling=sampling,
            speculation=SpeculationOptions(mode=mode),
        )
        for schema in batch
    ]
    return await asyncio.gather(*asked)
