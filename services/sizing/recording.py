"""Rounds of requests, and the times of the engines that ran them: input of formula and simulator.

Rounds belong to the requests, times to the machines: either can be replaced without the other.
"""

import math
import random
from dataclasses import dataclass, field

from slipstream.core.cost_curve import CostCurve
from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class RoundShape:
    """A round after the prompt's own: levels drafted, nodes proposed, nodes accepted."""

    depth: int
    nodes: int
    accepted: int

    def within(self, remaining: int) -> "RoundShape":
        """Return the round cut to the tokens that may still come: the last is never drafted."""
        depth = min(self.depth, remaining - 1)
        if depth == self.depth:
            return self
        return RoundShape(depth, depth, min(self.accepted, depth))


PLAIN = RoundShape(0, 0, 0)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A prompt's length, and the rounds that followed the first token."""

    num_prompt_tokens: int
    rounds: tuple[RoundShape, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return 1 + sum(each.accepted + 1 for each in self.rounds)


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of engines, and of calls between them.

    `verify` are (batched tokens, seconds) of one session's forwards on the target, ascending from
    1; every further session of a step adds `verify_session_s`. A pass of the draft, one level of
    the trees of all its sessions, takes `level_s`, and `level_token_s` for every batched token
    beyond the first. `call_s` is a call to an engine and back beside the engine's own time,
    `router_s` a round's time in the router.
    """

    verify: tuple[tuple[int, float], ...]
    level_s: float
    level_token_s: float = 0.0
    verify_session_s: float = 0.0
    call_s: float = 0.001
    router_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("level_s", "call_s", "level_token_s", "verify_session_s", "router_s"):
            seconds, is_needed = getattr(self, name), name in {"level_s", "call_s"}
            if not 0 <= seconds < math.inf or (is_needed and not seconds):
                raise InvalidRequest(f"{name} is {seconds}, which is no time of an engine or call")
        self.curve()

    def curve(self) -> CostCurve:
        """Return the time of a step of the target by batched tokens and sessions."""
        return CostCurve(self.verify, session_s=self.verify_session_s)

    def level(self, num_tokens: float) -> float:
        """Return the time of a pass of the draft over so many batched tokens."""
        return self.level_s + self.level_token_s * (num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests, and the times of the machines that they ran on."""

    times: DeviceTimes
    requests: tuple[RecordedRequest, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RandomRounds:
    """Chains of `depth` tokens; each is accepted with this probability if all before it are."""

    acceptance: float = 0.8
    depth: int = 4
    num_tokens: int = 128
    num_prompt_tokens: int = 64

    def __post_init__(self) -> None:
        if not (0 <= self.acceptance <= 1 and 0 <= self.depth <= 127):
            raise InvalidRequest(
                f"acceptance is {self.acceptance:g} and depth {self.depth}, but must be from 0 to 1"
                " and from 0 to 127"
            )
        if self.num_tokens < 2 or self.num_prompt_tokens < 1:
            raise InvalidRequest("answers need 2 tokens, prompts 1, or more")

    def requests(self, count: int, seed: int) -> tuple[RecordedRequest, ...]:
        """Return that many requests; the same seed gives the same ones."""
        rng = random.Random(seed)
        return tuple(self._request(rng) for _ in range(count))

    def _request(self, rng: random.Random) -> RecordedRequest:
        rounds, left = [], self.num_tokens - 1
        while left > 0:
            accepted = 0
            while accepted < self.depth and rng.random() < self.acceptance:
                accepted += 1
            rounds.append(RoundShape(self.depth, self.depth, accepted).within(left))
            left -= rounds[-1].accepted + 1
        return RecordedRequest(self.num_prompt_tokens, tuple(rounds))
