"""What was measured of the bias of target-initialised roots, in words and rows. Pure."""

from typing import Any

from slipstream.bench.papers.measured import Measured


def is_biased(measured: Measured) -> tuple[bool, str]:
    """Whether greedy tokens are others, or the law of a first token is off by more than chance."""
    greedy, laws = measured.extra("greedy"), measured.extra("laws")
    off = [law for law in laws if law["distance"]["branches"] > law["noise_95"]]
    share = greedy["other_tokens"] / greedy["tokens"]
    why = (
        f"{greedy['other_outputs']} of {greedy['outputs']} greedy outputs are others than plain"
        f" decoding's ({share:.0%} of the tokens), and the law of the first token is further from"
        f" the target's than chance explains for {len(off)} of {len(laws)} prompts."
    )
    return bool(greedy["other_outputs"] or off), why


def law_rows(laws: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """Per prompt, the distances of both samples from the law, and what chance does."""
    return tuple(
        (
            str(law["question_id"]),
            f"{law['entropy']:.2f}",
            f"{law['noise_95']:.3f}",
            f"{law['distance']['plain']:.3f}",
            f"{law['distance']['branches']:.3f}",
            "; ".join(
                f"{at['law']:.2f}, {at['plain']:.2f}, {at['branches']:.2f}"
                for at in law["likeliest"][:3]
            ),
        )
        for law in laws
    )


def text_rows(log_probs: dict[str, dict[str, float]]) -> tuple[tuple[str, ...], ...]:
    """Per temperature, how likely the outputs' tokens are under the target."""
    return tuple(
        (at, f"{of['plain']:.3f}", f"{of['branches']:.3f}", f"{of['branches'] - of['plain']:+.3f}")
        for at, of in log_probs.items()
    )
