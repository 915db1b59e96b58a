"""A recording out of a few numbers, for systems that do not exist yet. Chance is by a seed."""

import math
import random
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round, Work


@dataclass(frozen=True, slots=True)
class Guess:
    """How drafts do: each token of a chain of `depth` is kept with the chance `acceptance`, if all
    before it are; answers and prompts have so many tokens."""

    acceptance: float
    depth: int
    num_tokens: int = 128
    num_prompt_tokens: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise InvalidRequest(f"acceptance is {self.acceptance:g}, but must be from 0 to 1")
        if not 0 <= self.depth <= 127:
            raise InvalidRequest(f"depth is {self.depth}, but must be from 0 to 127")
        if self.num_tokens < 2 or self.num_prompt_tokens < 1:
            raise InvalidRequest("answers need 2 tokens, prompts 1, or more")

    def work(self) -> Work:
        """An average round of it."""
        return Work(self.depth, self.depth, expected_tokens(self.acceptance, self.depth))


def expected_tokens(acceptance: float, depth: int) -> float:
    """Tokens of a round: (1 - a^(d + 1)) / (1 - a).

    (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", eq. 1.)
    """
    return sum(acceptance**at for at in range(depth + 1))


def made(guess: Guess, devices: Devices, *, num_requests: int = 16, seed: int = 0) -> Recording:
    """Requests whose rounds are drawn as the guess says."""
    rng = random.Random(seed)
    return Recording(devices, tuple(_request(guess, rng) for _ in range(num_requests)))


def _request(guess: Guess, rng: random.Random) -> RecordedRequest:
    rounds: list[Round] = []
    left = guess.num_tokens - 1
    while left > 0:
        at = Round(guess.depth, guess.depth, _kept(guess, rng)).within(left)
        rounds.append(at)
        left -= at.accepted + 1
    return RecordedRequest(guess.num_prompt_tokens, tuple(rounds))


def _kept(guess: Guess, rng: random.Random) -> int:
    """Geometric, cut off at the depth."""
    if guess.acceptance in (0.0, 1.0):
        return round(guess.acceptance) * guess.depth
    drawn = math.log(1 - rng.random()) / math.log(guess.acceptance)
    return min(int(drawn), guess.depth)
