"""A recording: what rounds were, and what engines and wires took. Values, and a file of them.

What was drafted and kept is of the requests, what it took is of the machines: either can be
replaced without the other. Knows no traces, no services and no clock.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slipstream.core.cost_curve import CostCurve
from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Round:
    """One round after the prompt's own: `depth` levels were drafted, `nodes` proposed, and
    `accepted` of them kept. Depth 0 is a plain round."""

    depth: int
    nodes: int
    accepted: int

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.depth <= self.nodes or (self.nodes and not self.depth):
            raise InvalidRequest(
                f"no round drafts {self.depth} levels of {self.nodes} nodes and keeps"
                f" {self.accepted}"
            )

    def within(self, remaining: int) -> "Round":
        """The same where only so many tokens may still come: the last one is never drafted."""
        depth = min(self.depth, remaining - 1)
        if depth == self.depth:
            return self
        return Round(depth, depth, min(self.accepted, depth))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A prompt's length, and the rounds that followed the first token."""

    num_prompt_tokens: int
    rounds: tuple[Round, ...]

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1:
            raise InvalidRequest("a recorded prompt has no tokens")

    @property
    def num_tokens(self) -> int:
        """Of the answer."""
        return 1 + sum(at.accepted + 1 for at in self.rounds)


@dataclass(frozen=True, slots=True)
class Devices:
    """Seconds that engines take, and calls between them.

    `verify` are (rows, seconds) of one session's forwards on the target, ascending from 1 row;
    every further session of a step adds `verify_session_s`. A pass of the draft takes `level_s`,
    and `level_row_s` more for every row beyond the first: a pass is a level of the trees of all
    sessions that are drafted for at the time. `wire_s` is what a call to an engine and back takes
    beside the engine, `router_s` what a round takes in the router.
    """

    verify: tuple[tuple[int, float], ...]
    level_s: float
    level_row_s: float = 0.0
    verify_session_s: float = 0.0
    tile: int | None = None
    wire_s: float = 0.001
    router_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("level_row_s", "verify_session_s", "router_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidRequest(f"{name} is {value}, but must be 0 or more")
        for name in ("level_s", "wire_s"):  # who is back at once is never waited for
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be above 0")
        self.curve()

    def curve(self) -> CostCurve:
        """What a step of the target takes by rows and sessions."""
        return CostCurve(self.verify, tile=self.tile, session_s=self.verify_session_s)

    def level(self, rows: int) -> float:
        """What a pass of the draft takes."""
        return self.level_s + self.level_row_s * (rows - 1)


@dataclass(frozen=True, slots=True)
class Work:
    """An average round: levels drafted, nodes proposed, tokens that became final.

    `prompt` are the tokens of prompts that come to be read with it: a prompt's, shared out among
    the rounds of its answer.
    """

    depth: float
    nodes: float
    final: float
    prompt: float = 0.0

    def __post_init__(self) -> None:
        is_known = 0 <= self.depth <= self.nodes < math.inf and 0 <= self.prompt < math.inf
        if not (is_known and 1 <= self.final <= 1 + self.depth):
            raise InvalidRequest(
                f"no round drafts {self.depth:g} levels of {self.nodes:g} nodes and makes"
                f" {self.final:g} tokens final"
            )


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests, and the machines that they ran on."""

    devices: Devices
    requests: tuple[RecordedRequest, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not any(request.rounds for request in self.requests):
            raise InvalidRequest("a recording has no round after a prompt's own")

    def work(self) -> Work:
        """The average of all rounds."""
        rounds = [at for request in self.requests for at in request.rounds]
        count = len(rounds)
        return Work(
            sum(at.depth for at in rounds) / count,
            sum(at.nodes for at in rounds) / count,
            1 + sum(at.accepted for at in rounds) / count,
            sum(request.num_prompt_tokens for request in self.requests) / count,
        )


def write_recording(path: Path, recording: Recording) -> None:
    """JSON lines: the devices, then a request each. The whole file or nothing."""
    devices = {at.name: getattr(recording.devices, at.name) for at in fields(Devices)}
    lines: list[dict[str, Any]] = [{"devices": devices}]
    for request in recording.requests:
        rounds = [[at.depth, at.nodes, at.accepted] for at in request.rounds]
        lines.append({"prompt_tokens": request.num_prompt_tokens, "rounds": rounds})
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None


def read_recording(path: Path) -> Recording:
    """What `write_recording` wrote. Raises `InvalidRequest`, which names the file."""
    try:
        head, *rest = path.read_text(encoding="utf-8").splitlines()
        devices = devices_from_values(json.loads(head)["devices"])
        return Recording(devices, tuple(map(_request, rest)))
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read ({error.strerror})") from None
    except (ValueError, TypeError, LookupError, AttributeError, InvalidRequest) as error:
        raise InvalidRequest(f"{path} holds no recording ({error})") from None


def devices_from_values(values: dict[str, Any]) -> Devices:
    """Devices as JSON has them. Raises `InvalidRequest`, or what unknown values lead to."""
    verify: Sequence[Sequence[float]] = values["verify"]
    points = tuple((int(rows), float(seconds)) for rows, seconds in verify)
    return Devices(**{**values, "verify": points})


def _request(line: str) -> RecordedRequest:
    values = json.loads(line)
    rounds = tuple(Round(*map(int, at)) for at in values["rounds"])
    return RecordedRequest(int(values["prompt_tokens"]), rounds)
