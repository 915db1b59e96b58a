"""Options of everything that reckons with rounds: where they are from, and what they take."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.making import Guess, made
from slipstream.sizing.measured import MeasuredCosts, read_measured
from slipstream.sizing.recording import Devices, Recording, read_recording
from slipstream.sizing.traces import recording_of
from slipstream.telemetry.read_traces import read_spans

_VERIFY_MS, _DRAFT_MS, _DRAFT_ROW_MS = 40.0, 4.0, 0.2
_FREE_ROWS, _MOST_ROWS = 32, 256
_SOURCE = "rounds are recorded, so --{} can't be told as well"


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Recorded rounds, or how they are imagined; and what takes another time than recorded."""

    traces: Annotated[
        Path | None, Option(help="Rounds from a directory of trace files: see docs/sizing.md.")
    ] = None
    recording: Annotated[Path | None, Option(help="Rounds from a file that --save wrote.")] = None
    measured: Annotated[
        Path | None, Option(help="Costs from a file of `bench breakeven --json`.")
    ] = None
    acceptance: Annotated[
        float | None,
        Option(help="Without traces or recording: chance of each drafted token; 0.8."),
    ] = None
    depth: Annotated[int | None, Option(help="Tokens drafted in a round; 4.")] = None
    output_tokens: Annotated[int | None, Option(help="Of an answer; 128.")] = None
    prompt_tokens: Annotated[int | None, Option(help="Of a prompt; 64.")] = None
    verify_ms: Annotated[float | None, Option(help="A plain round on the target; 40.")] = None
    verify_row_ms: Annotated[
        float | None, Option(help="A row to verify beyond the first 32; 0.2.")
    ] = None
    verify_session_ms: Annotated[
        float | None, Option(help="A session more in a step of the target; 0.")
    ] = None
    draft_ms: Annotated[float | None, Option(help="A drafted token of one session; 4.")] = None
    draft_row_ms: Annotated[
        float | None, Option(help="A session more in a pass of the draft; 0.2.")
    ] = None
    wire_ms: Annotated[float | None, Option(help="A call to an engine and back; 1.")] = None
    seed: Annotated[int, Option(help="Of imagined rounds, and of when users come.")] = 0

    def rounds(self) -> Recording:
        """What is reckoned with. Raises `InvalidRequest` for what contradicts itself."""
        self._check_sources()
        if self.measured is not None:
            found = read_measured(self.measured)
            return made(self._guess(found), self._devices(found.devices), seed=self.seed)
        recorded = self._recorded()
        if recorded is None:
            return made(self._guess(None), self._devices(None), seed=self.seed)
        for name in ("acceptance", "depth", "output_tokens", "prompt_tokens"):
            if getattr(self, name) is not None:
                raise InvalidRequest(_SOURCE.format(name.replace("_", "-")))
        return replace(recorded, devices=self._devices(recorded.devices))

    def _check_sources(self) -> None:
        names = ("traces", "recording", "measured")
        told = [f"--{name}" for name in names if getattr(self, name) is not None]
        if len(told) > 1:
            raise InvalidRequest(f"rounds are from {' or from '.join(told)}, not from more")

    def _recorded(self) -> Recording | None:
        if self.recording is not None:
            return read_recording(self.recording)
        return None if self.traces is None else recording_of(read_spans(self.traces))

    def _guess(self, found: MeasuredCosts | None) -> Guess:
        acceptance, depth = (0.8, 4) if found is None else (found.acceptance, found.depth)
        return Guess(
            acceptance if self.acceptance is None else self.acceptance,
            depth if self.depth is None else self.depth,
            128 if self.output_tokens is None else self.output_tokens,
            64 if self.prompt_tokens is None else self.prompt_tokens,
        )

    def _devices(self, recorded: Devices | None) -> Devices:
        """As recorded, but for what is told."""
        told = {
            "verify_session_s": self.verify_session_ms,
            "level_s": self.draft_ms,
            "level_row_s": self.draft_row_ms,
            "wire_s": self.wire_ms,
        }
        changes: dict[str, Any] = {
            name: value / 1000 for name, value in told.items() if value is not None
        }
        if recorded is None:
            recorded = Devices(self._curve(), _DRAFT_MS / 1000, _DRAFT_ROW_MS / 1000)
        elif self.verify_ms is not None or self.verify_row_ms is not None:
            recorded = replace(recorded, verify=self._curve(), tile=None)
        return replace(recorded, **changes)

    def _curve(self) -> tuple[tuple[int, float], ...]:
        verify_s = (_VERIFY_MS if self.verify_ms is None else self.verify_ms) / 1000
        row_s = (0.2 if self.verify_row_ms is None else self.verify_row_ms) / 1000
        last_s = verify_s + row_s * (_MOST_ROWS - _FREE_ROWS)
        return (1, verify_s), (_FREE_ROWS, verify_s), (_MOST_ROWS, last_s)


def counts(text: str, name: str) -> tuple[int, ...]:
    """Numbers such as 1,2,4 or 1-8, ascending. Raises `InvalidRequest`."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise InvalidRequest(f"{name} is {text!r}, but must be like 1,2,4 or 1-8") from None
    if not found or len(found) > 10_000:
        raise InvalidRequest(f"{name} is {text!r}, which names {len(found)} numbers")
    return tuple(sorted(found))
