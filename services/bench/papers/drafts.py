"""Experiments on what the draft is and which candidates it offers: GliDe, CaPE, EAGLE-2. Data."""

from slipstream.bench.papers.experiment import Arm, Claim, Experiment, Setting, Weights
from slipstream.bench.papers.judging import faster, holds, more, not_comparable
from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.published import (
    CAPE_FIGURE_6,
    CAPE_TABLE_3,
    EAGLE2_TABLE_1,
    FIGURE_4,
    FIGURE_7,
    GLIDE_TABLE_1,
    GLIDE_TABLE_5,
    SVIP_ON_EAGLE2,
)

_SHIPPED, _ALIKE, _LAST = "GliDe, shipped weights", "GliDe", "GliDe, last layer alone"
_NO_CROSS, _VANILLA = "no cross-attention", "vanilla draft"
_BEAM = "glide+dynamic+depth=5+nodes=32"


def _drafts(method: str) -> tuple[Arm, ...]:
    return (
        Arm(_SHIPPED, method),
        Arm(_ALIKE, method, Weights.ALIKE),
        Arm(_LAST, method, Weights.LAST_LAYER),
        Arm(_NO_CROSS, method, Weights.NO_CROSS),
        Arm(_VANILLA, method, Weights.VANILLA),
    )


_LEAST_GAIN = 0.05
"""About the smallest of figure 4."""
_ALIKE_NOTE = "drafts trained alike, for 130 steps"


def _is_last_layer_enough(measured: Measured) -> tuple[bool, str]:
    last, none = (measured.arm(1, label)["alpha"] for label in (_LAST, _NO_CROSS))
    three = measured.arm(1, _ALIKE)["alpha"]
    gained, whole = last - none, three - none
    why = (
        f"The last layer alone adds {100 * gained:.1f} points to {100 * none:.1f}, the three layers"
        f" of ours {100 * whole:.1f}; {_ALIKE_NOTE}, and few steps favour layers further down."
    )
    return gained >= _LEAST_GAIN, why


GLIDE = Experiment(
    "glide",
    "GliDe, a draft without cross-attention, and a vanilla draft",
    "GliDe with a CaPE (Du et al., ICML 2024), figures 4 and 7, tables 1 and 5",
    claims=(
        Claim(
            "Reading the target's keys and values raises acceptance: 5 to 24 points over the same"
            " draft without.",
            "figure 4",
            more("alpha", _ALIKE, _NO_CROSS, 1, what="acceptance", note=_ALIKE_NOTE),
        ),
        Claim(
            "GliDe's expected speed-up is above that of a vanilla draft.",
            "table 1",
            more("expected", _ALIKE, _VANILLA, 1, what="expected speed-up", note=_ALIKE_NOTE),
        ),
        Claim(
            "GliDe is faster than a vanilla draft when measured, too.",
            "table 5",
            faster(_ALIKE, _VANILLA, 0, note=_ALIKE_NOTE),
        ),
        Claim(
            "Reading the target's last layer alone raises acceptance by about 20 points"
            " (Mistral-7B).",
            "figure 7",
            holds(_is_last_layer_enough),
        ),
        Claim(
            "Acceptance of 56 to 69 points, and 1.7 to 2.4 times the speed of plain decoding.",
            "tables 1 and 5",
            not_comparable(
                "The target has 135 million parameters instead of 7 to 33 billion, the draft is"
                " narrower and saw a small part of the text, and a plain step takes no long"
                " read of weights from a GPU's memory."
            ),
        ),
    ),
    settings=(Setting(0, _drafts("glide")), Setting(1, _drafts("glide+mcsd"))),
    columns=("alpha", "cost", "expected", "tokens_per_round", "tokens_per_s", "ratio"),
    published=(FIGURE_4, FIGURE_7, GLIDE_TABLE_1, GLIDE_TABLE_5),
)


def _is_cape_cheap(measured: Measured) -> tuple[bool, str]:
    glide, cape, beam = (measured.arm(0, name)["draft_ms"] for name in ("GliDe", "+CaPE", "beam"))
    why = (
        f"Drafting takes {glide:.2f} ms a round for GliDe, {cape:.2f} with CaPE"
        f" ({cape / glide:.2f}x) and {beam:.2f} as a beam ({beam / glide:.2f}x)."
    )
    return cape / glide < 1.2 < beam / glide, why


CAPE = Experiment(
    "cape",
    "GliDe, +CaPE, and beam search",
    "GliDe with a CaPE (Du et al., ICML 2024), table 3 and figure 6",
    claims=(
        Claim(
            "CaPE makes GliDe faster: 2.0 to 2.6 times plain decoding (Vicuna-7B).",
            "figure 6",
            faster("+CaPE", "GliDe", 0),
        ),
        Claim(
            "CaPE is faster than beam search.",
            "figure 6",
            faster("+CaPE", "beam", 0, note="a beam of 10 with 32 nodes, level by level"),
        ),
        Claim(
            "CaPE adds next to nothing to the time of drafting (+4%), while a beam doubles it.",
            "table 3",
            holds(_is_cape_cheap),
        ),
        Claim(
            "Up to 2.61 times the speed of plain decoding.",
            "figure 6",
            not_comparable(
                "The level depends on model, training and machine; what CaPE adds to the same"
                " draft does not, and is judged above."
            ),
        ),
    ),
    settings=(Setting(0, (Arm("GliDe", "glide"), Arm("+CaPE", "glide+cape"), Arm("beam", _BEAM))),),
    columns=("tokens_per_round", "nodes", "draft_ms", "tokens_per_s", "ratio"),
    published=(
        CAPE_FIGURE_6,
        CAPE_TABLE_3,
    ),
)

_TREE, _TREE_SVIP = "dynamic tree", "dynamic tree + SVIP"

EAGLE2 = Experiment(
    "eagle2",
    "EAGLE-2's dynamic trees, with and without SVIP",
    "EAGLE-2 (Li et al., EMNLP 2024) and SVIP (EMNLP 2025; figures of its first version)",
    claims=(
        Claim(
            "A dynamic tree gets further in a round than what it replaces (tau 4.65 after 3.82,"
            " Vicuna-13B).",
            "EAGLE-2, table 1",
            more(
                "tokens_per_round",
                _TREE,
                "chain",
                0,
                what="tokens per round",
                note="over a chain of the same draft, as no EAGLE-1 tree is here",
            ),
        ),
        Claim(
            "A dynamic tree is 20 to 40% faster than EAGLE-1.",
            "EAGLE-2",
            not_comparable(
                "There is no EAGLE-1 draft here, and on a processor a tree of 32 rows is not"
                " verified for free, as it is on a GPU."
            ),
        ),
        Claim(
            "SVIP makes EAGLE-2's trees faster, by 1 to 6%.",
            "SVIP, on EAGLE-2",
            faster(
                _TREE_SVIP,
                _TREE,
                0,
                note="most of it because fewer rows are verified, which are not free here",
            ),
        ),
    ),
    settings=(
        Setting(
            0, (Arm("chain", "glide"), Arm(_TREE, _BEAM), Arm(_TREE_SVIP, f"{_BEAM}+svip=0.3"))
        ),
    ),
    columns=("tokens_per_round", "length", "nodes", "draft_ms", "tokens_per_s", "ratio"),
    published=(
        EAGLE2_TABLE_1,
        SVIP_ON_EAGLE2,
    ),
)
