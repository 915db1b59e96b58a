"""Experiments on when to stop drafting: SVIP, its long outputs, and the decision model. Data."""

from slipstream.bench.papers.experiment import (
    Arm,
    Claim,
    Experiment,
    Judge,
    Outcome,
    Setting,
    Verdict,
)
from slipstream.bench.papers.judging import Holds, faster, holds, not_comparable, ratio_text
from slipstream.bench.papers.long_report import is_lead_kept, is_repetition_faster, is_whole
from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.published import (
    DECISION_WIDTHS,
    SVIP_GREEDY,
    SVIP_LONG,
    SVIP_ON_GLIDE,
    SVIP_SAMPLED,
    SVIP_STATISTICS,
)

CONSTANT, HEURISTIC, SVIP = "constant", "heuristic", "SVIP"
DECISION = "decision model"
CHEAP = "a draft step is cheap here (c), so a stop has little to save"
_LOOSER = "SVIP, threshold 0.5"
_RULES = (
    Arm(CONSTANT, "glide"),
    Arm(HEURISTIC, "glide+heuristic"),
    Arm(SVIP, "glide+svip=0.3"),
    Arm(_LOOSER, "glide+svip=0.5"),
)
_CAPE, _CAPE_SVIP = "GliDe + CaPE", "GliDe + CaPE + SVIP"


def _is_accepted_most(measured: Measured) -> tuple[bool, str]:
    shares = {name: measured.arm(0, name)["acceptance"] for name in (CONSTANT, HEURISTIC, SVIP)}
    lengths = {name: measured.arm(0, name)["length"] for name in shares}
    parts = [f"{name} {shares[name]:.1%} of {lengths[name]:.2f} drafted" for name in shares]
    return shares[SVIP] == max(shares.values()), f"Accepted: {', '.join(parts)} a round."


SVIP_RULE = Experiment(
    "svip",
    "SVIP against a constant length and the heuristic",
    "SVIP (EMNLP 2025; the figures are those of its first version)",
    claims=(
        Claim(
            "Greedy, SVIP is faster than chains of a constant length: 15 to 21%.",
            "Spec-Bench",
            faster(SVIP, CONSTANT, 0, note=CHEAP),
        ),
        Claim(
            "The same with the loosest threshold of the paper's grid, 0.5.",
            "the grid of its threshold",
            faster(_LOOSER, CONSTANT, 0, note="0.3 was found for other models"),
        ),
        Claim(
            "Greedy, SVIP is faster than the heuristic: 3 to 21%.",
            "Spec-Bench",
            faster(SVIP, HEURISTIC, 0),
        ),
        Claim(
            "At temperature 1 SVIP is faster than a constant length where the draft is weak"
            " (25 to 57%), and level where it is strong.",
            "Spec-Bench",
            faster(SVIP, CONSTANT, 1, note="ours is a weak draft"),
        ),
        Claim(
            "SVIP adapts the length, and the largest share of what it drafts is accepted.",
            "draft statistics",
            holds(_is_accepted_most),
        ),
        Claim(
            "SVIP makes GliDe + CaPE faster, too: 1 to 5%.",
            "on GliDe and CaPE",
            faster(_CAPE_SVIP, _CAPE, 0),
        ),
        Claim(
            "The levels of speed-up, 1.0 to 2.8.",
            "Spec-Bench",
            not_comparable(
                "The papers' drafts have 1/43 to 1/9 of their target's weights and take as many"
                " steps as they draft tokens; ours is one layer, so its steps cost next to nothing."
            ),
        ),
    ),
    settings=(
        Setting(0, (*_RULES, Arm(_CAPE, "glide+cape"), Arm(_CAPE_SVIP, "glide+cape+svip=0.3"))),
        Setting(1, _RULES),
    ),
    columns=("length", "acceptance", "tokens_per_round", "cost", "tokens_per_s", "ratio"),
    published=(SVIP_GREEDY, SVIP_SAMPLED, SVIP_STATISTICS, SVIP_ON_GLIDE),
    by_category=True,
)


def _of_whole_texts(found: Holds) -> Judge:
    """A judge of what only long texts can show."""

    def judge(measured: Measured) -> Verdict:
        if is_whole(measured):
            return holds(found)(measured)
        return Verdict(Outcome.NOT_COMPARABLE, f"{found(measured)[1]} These texts are too short.")

    return judge


LONG = Experiment(
    "long",
    "Long outputs",
    "SVIP (EMNLP 2025; the figures are those of its first version)",
    claims=(
        Claim(
            "SVIP's lead over a constant length holds however long the output gets.",
            "long outputs",
            _of_whole_texts(is_lead_kept),
        ),
        Claim(
            "Long greedy outputs repeat themselves, which inflates the speed-up.",
            "long outputs",
            _of_whole_texts(is_repetition_faster),
        ),
        Claim(
            "At 4,096 tokens SVIP is at 1.33 to 1.96 times plain decoding (temperature 1).",
            "long outputs",
            not_comparable(
                "The level depends on the pair of models, and the draft here was trained on short"
                " replies only."
            ),
        ),
    ),
    published=(SVIP_LONG,),
)


def _is_more_accepted(measured: Measured) -> tuple[bool, str]:
    ours, theirs = (measured.arm(0, name)["acceptance"] for name in (DECISION, CONSTANT))
    why = f"Accepted: {ours:.1%} of what is drafted with it, {theirs:.1%} without."
    return ours > theirs, why


def _no_faster(measured: Measured) -> Verdict:
    found = measured.ratio(0, DECISION, CONSTANT)
    if found is None:
        return Verdict(Outcome.NOT_COMPARABLE, "No output was long enough to be timed.")
    why = f"With it, {ratio_text(found)} of the speed without; {CHEAP}."
    is_gain = found.low > 1
    return Verdict(Outcome.NOT_REPRODUCED if is_gain else Outcome.REPRODUCED, why)


DECIDING = Experiment(
    "decision",
    "The decision model against entropy",
    "Improving Multi-Candidate Speculative Decoding (Lu et al., 2024), and its released results",
    claims=(
        Claim(
            "Drafting that the decision model stops has a larger share accepted (0.534 against"
            " 0.409 at width 4).",
            "released results, MT-Bench",
            holds(_is_more_accepted),
        ),
        Claim(
            "At the same tree it brings no speed (116.5 against 116.7 tokens/s at width 4).",
            "released results, MT-Bench",
            _no_faster,
        ),
        Claim(
            "A learned stop is faster than entropy, which needs no training.",
            "compared by neither paper",
            faster(DECISION, SVIP, 0, note=CHEAP),
        ),
    ),
    settings=(
        Setting(
            0, (Arm(CONSTANT, "glide"), Arm(SVIP, "glide+svip"), Arm(DECISION, "glide+decision"))
        ),
    ),
    columns=("length", "acceptance", "tokens_per_round", "cost", "tokens_per_s", "ratio"),
    published=(DECISION_WIDTHS,),
)
