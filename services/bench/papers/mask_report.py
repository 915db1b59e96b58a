"""What masks cost, in words and rows. Pure."""

from typing import Any

from slipstream.bench.papers.measured import Measured


def is_slicing_cheaper(measured: Measured) -> tuple[bool, str]:
    """Whether slices take less time than masks built anew, for every tree."""
    trees = measured.extra("trees")
    gains = [of["rebuilt"] / of["sliced"] for of in trees.values()]
    largest = max(trees.values(), key=lambda of: of["nodes"])
    why = (
        f"Slices take {min(gains):.1f} to {max(gains):.1f} times less; for the largest tree"
        f" ({largest['nodes']} nodes) that is {share(largest, 'sliced'):.2%} of a verification"
        f" instead of {share(largest, 'rebuilt'):.2%}."
    )
    return min(gains) > 1, why


def mask_rows(trees: dict[str, dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """Per tree, the time of its masks in each way, and their share of a verification."""
    return tuple(
        (
            name,
            str(of["nodes"]),
            str(of["levels"]),
            f"{of['sliced']:.0f}",
            f"{of['first']:.0f}",
            f"{of['rebuilt']:.0f}",
            f"{of['round_ms']:.1f}",
            f"{share(of, 'sliced'):.2%}",
            f"{share(of, 'rebuilt'):.2%}",
        )
        for name, of in trees.items()
    )


def share(of: dict[str, Any], way: str) -> float:
    """The part of a verification's time that masks would take."""
    return float(of[way] / (1000 * of["round_ms"]))
