"""One long output per arm, all arms in turn piece by piece: how fast each is as the text grows.

The end of the text is ruled out, so that it reaches its length. Prints nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.methods import parse_method
from slipstream.bench.papers.lineup import Lineup
from slipstream.bench.papers.plan import PIECE, PapersPlan
from slipstream.bench.speed import Outputs
from slipstream.client.client import ClientSession
from slipstream.client.stream import ChunkStream
from slipstream.core.errors import PromptTooLong
from slipstream.core.types import SamplingParams
from slipstream.text.prompts import encode_prompt

ARMS: Mapping[str, str] = {
    "plain": "plain",
    "constant": "glide",
    "heuristic": "glide+heuristic",
    "SVIP": "glide+svip",
}
TEMPERATURES = (1.0, 0.0)
TURN = 32
"""Tokens of an output before the next one's turn."""
NEVER = -100.0
"""The bias of a token that is not to come."""
_GRAM = 8


@dataclass(slots=True)
class Writing:
    """An output on its way, and the seconds it took so far, from its first token on."""

    session: ClientSession
    stream: ChunkStream
    tokens: list[int] = field(default_factory=list)
    first: int = 0
    seconds: float = 0.0

    def begin(self) -> None:
        """The prompt, and the first tokens: not timed."""
        self.tokens += next(self.stream).token_ids
        self.first = len(self.tokens)

    def reach(self, count: int) -> None:
        """Go on until there are so many tokens, or no more."""
        while len(self.tokens) < count:
            start = time.perf_counter()
            chunk = next(self.stream, None)
            self.seconds += time.perf_counter() - start
            if chunk is None:
                return
            self.tokens += chunk.token_ids

    def close(self) -> None:
        """Free its caches."""
        self.stream.close()
        self.session.close()


def measure_long(
    plan: PapersPlan,
    lineup: Lineup,
    outputs: Mapping[float, Outputs],
    advance: Callable[[str], None],
) -> dict[str, Any]:
    """By temperature (as text) and arm: tokens and seconds after every piece, and how much of the
    text had been there before."""
    del outputs
    return {
        f"{temperature:g}": _measure(plan, lineup, temperature, advance)
        for temperature in TEMPERATURES
    }


def _measure(
    plan: PapersPlan, lineup: Lineup, temperature: float, advance: Callable[[str], None]
) -> dict[str, Any]:
    writings: dict[str, Writing] = {}
    found: dict[str, dict[str, Any]] = {name: {"tokens": [], "seconds": []} for name in ARMS}
    try:
        for name in ARMS:
            writings[name] = _open(plan, lineup, name, temperature)
            writings[name].begin()
        for number, mark in enumerate(range(PIECE, plan.long_tokens + 1, PIECE)):
            _reach(writings, mark, turned=number)
            for name, writing in writings.items():
                found[name]["tokens"].append(len(writing.tokens) - writing.first)
                found[name]["seconds"].append(round(writing.seconds, 4))
            advance(f"long, {mark} tokens")
        for name, writing in writings.items():
            found[name]["repeated"] = [
                round(share_repeated(writing.tokens[:mark]), 4)
                for mark in (PIECE, plan.long_tokens)
            ]
    finally:
        for writing in writings.values():
            writing.close()
    return found


def _reach(writings: Mapping[str, Writing], mark: int, *, turned: int) -> None:
    """Have all of them reach `mark` in short turns, so that no drift of the machine favours one."""
    names = list(writings)
    for number, count in enumerate(range(mark - PIECE + TURN, mark + 1, TURN)):
        start = (turned + number) % len(names)
        for name in names[start:] + names[:start]:
            writings[name].reach(count)


def share_repeated(tokens: Sequence[int]) -> float:
    """Of all runs of 8 tokens, those that had been there before."""
    runs = [tuple(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _open(plan: PapersPlan, lineup: Lineup, name: str, temperature: float) -> Writing:
    method, contenders = parse_method(ARMS[name]), lineup.contenders
    contenders.load(method)
    facts = contenders.engine("fast").facts
    prompt = encode_prompt(contenders.engine("fast").text, plan.questions[0].turns[0])
    if len(prompt) + plan.long_tokens > facts.context_length:
        raise PromptTooLong(
            f"{plan.long_tokens} tokens after a prompt of {len(prompt)} exceed the context of"
            f" {facts.context_length}"
        )
    bias = tuple((token, NEVER) for token in sorted(facts.stop_token_ids))
    sampling = SamplingParams(temperature=temperature, logit_bias=bias, seed=plan.seed)
    session = contenders.client(method).session()
    stream = session.stream(
        tuple(prompt), sampling=sampling, max_tokens=plan.long_tokens, speculation=method.options
    )
    return Writing(session, stream)
