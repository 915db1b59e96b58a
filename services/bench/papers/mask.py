"""Times the masks of a round: sliced from one that is there, against built anew each time.

Prints nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor

from slipstream.bench.papers.lineup import Lineup
from slipstream.bench.papers.plan import PapersPlan
from slipstream.bench.speed import Outputs
from slipstream.core.mask import SlicedMasks, Topology, ancestor_mask
from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.causal import CausalModel
from slipstream.models.rows import Part
from slipstream.text.prompts import encode_prompt

WIDTHS: Mapping[str, tuple[int, ...]] = {
    "2x2x1x1": (2, 2, 1, 1),
    "4x2x2": (4, 2, 2),
    "4x2x2x1": (4, 2, 2, 1),
    "10 paths of 6": (10, 1, 1, 1, 1, 1),
    "4x4x4": (4, 4, 4),
    "16 paths of 7": (16, 1, 1, 1, 1, 1, 1),
}
_VERIFICATIONS = 9


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree as a draft grows it: after each level there are so many nodes."""

    parents: Topology
    levels: tuple[int, ...]

    @classmethod
    def product(cls, widths: Sequence[int]) -> "Growth":
        """Every node of a level has as many children as `widths` says."""
        parents, levels, level = list[int](), list[int](), [ROOT]
        for width in widths:
            first = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(first, len(parents)))
            levels.append(len(parents))
        return cls(tuple(parents), tuple(levels))


def rebuilt(parents: Topology, start: int) -> Tensor:
    """What `SlicedMasks.rows` gives, with nothing kept from one call to the next."""
    return ancestor_mask(parents)[start:]


def round_masks(growth: Growth, rows: Callable[[Topology, int], Tensor]) -> list[Tensor]:
    """A mask for each level of a growing tree, over all nodes before and in it."""
    masks, start = [], 0
    for end in growth.levels:
        masks.append(rows(growth.parents[:end], start))
        start = end
    return masks


def measure_masks(
    plan: PapersPlan,
    lineup: Lineup,
    outputs: Mapping[float, Outputs],
    advance: Callable[[str], None],
) -> dict[str, Any]:
    """By tree: microseconds a round for masks sliced, first seen and rebuilt, and milliseconds of
    the round's verification."""
    del outputs
    model = lineup.contenders.engine("invariant").model
    text = lineup.contenders.engine("invariant").text
    prompt = encode_prompt(text, plan.questions[0].turns[0])
    found = {}
    for name, widths in WIDTHS.items():
        growth = Growth.product(widths)
        found[name] = {
            "nodes": len(growth.parents),
            "levels": len(growth.levels),
            **_mask_us(growth, plan.mask_rounds),
            "round_ms": round(_round_ms(model, prompt, growth), 3),
        }
        advance(f"masks, {name}")
    return {"trees": found}


def _mask_us(growth: Growth, rounds: int) -> dict[str, float]:
    known = SlicedMasks()
    ways: dict[str, Callable[[], object]] = {
        "sliced": lambda: round_masks(growth, known.rows),
        "first": lambda: round_masks(growth, SlicedMasks().rows),
        "rebuilt": lambda: round_masks(growth, rebuilt),
    }
    ways["sliced"]()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(_timed(way))
    return {name: round(1e6 * median(values), 1) for name, values in seconds.items()}


def _round_ms(model: CausalModel, prompt: Sequence[int], growth: Growth) -> float:
    """A verification of the whole tree behind a prompt, head included."""
    size = len(growth.parents)
    cache = model.open(len(prompt) + size + 1)
    tree = TokenTree(tuple(range(size)), growth.parents)

    def verify() -> None:
        hidden, _ = model.forward([Part(cache, prompt[-1:], tree)])
        model.logits(hidden)

    try:
        model.prefill(cache, prompt[:-1])
        return 1000 * median([_timed(verify) for _ in range(1 + _VERIFICATIONS)][1:])
    finally:
        cache.close()


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
