"""Experiments on several candidates for a slot: MCSD, target-initialised roots, masks. Data."""

from slipstream.bench.papers.bias_report import is_biased
from slipstream.bench.papers.experiment import Arm, Claim, Experiment, Setting
from slipstream.bench.papers.judging import faster, holds, more, not_comparable
from slipstream.bench.papers.mask_report import is_slicing_cheaper
from slipstream.bench.papers.published import MCSD_ACCEPTANCE, MCSD_SPEED, TARGET_INIT_SPEED

SINGLE, SAME_NUMERICS = "single, 4 tokens", "plain, same numerics"
BRANCHES = "target-initialised"
_WIDEST, _WITH = "4x2x2x1", ", with replacement"
_CONFIGS = ("2x2x1x1", "4x2x2", _WIDEST)
_MULTI = "glide+mcsd+product=4x2x2x1+nodes=44"
_FORK = "glide+target-init+depth=5+nodes=24"


def _k_configs() -> tuple[Arm, ...]:
    arms = [Arm(SINGLE, "glide+mcsd+product=1x1x1x1")]
    for config in _CONFIGS:
        arms += [
            Arm(config, f"glide+mcsd+product={config}+nodes=44"),
            Arm(config + _WITH, f"glide+mcsd-replacement+product={config}+nodes=44"),
        ]
    return tuple(arms)


MCSD = Experiment(
    "mcsd",
    "MCSD: several candidates for each slot",
    "Multi-Candidate Speculative Decoding (Yang et al., 2024)",
    claims=(
        Claim(
            "Several candidates raise the acceptance rate.",
            "abstract",
            more("acceptance", _WIDEST, SINGLE, 1, what="acceptance rate"),
        ),
        Claim(
            "They raise block efficiency.",
            "abstract",
            more("tokens_per_round", _WIDEST, SINGLE, 1, what="block efficiency"),
        ),
        Claim(
            "Drawing without replacement beats drawing with it.",
            "the method",
            more(
                "tokens_per_round",
                _WIDEST,
                _WIDEST + _WITH,
                1,
                what="block efficiency",
                note="each in runs of its own random numbers",
            ),
        ),
        Claim(
            "Several candidates are faster than one.",
            "abstract",
            faster("4x2x2", SINGLE, 1, note="its 28 rows are not free to verify on a processor"),
        ),
    ),
    settings=(Setting(1, _k_configs()),),
    columns=("acceptance", "tokens_per_round", "nodes", "tokens_per_s", "ratio"),
    published=(
        MCSD_SPEED,
        MCSD_ACCEPTANCE,
    ),
)

TARGET_INIT = Experiment(
    "target-init",
    "Target-initialised roots: speed and bias",
    "Improving Multi-Candidate Speculative Decoding (Lu et al., 2024)",
    claims=(
        Claim(
            "Target-initialised roots are faster than MCSD: up to 27.5%.",
            "abstract",
            faster(
                BRANCHES,
                "MCSD 4x2x2x1",
                1,
                note="four branches of five tokens; the published gain is of a static tree",
            ),
        ),
        Claim(
            "They do not guarantee the quality of the output: the law is not the target's.",
            "first author's page; the algorithm",
            holds(is_biased),
        ),
        Claim(
            "2.7 times the speed of plain decoding with 16 branches (lossy).",
            "released results",
            not_comparable(
                "A GPU verifies 16 branches of 5 tokens in the time of one token; here every row"
                " has its price, and there are four branches."
            ),
        ),
    ),
    settings=(
        Setting(
            0,
            (
                Arm(SAME_NUMERICS, "plain+invariant"),
                Arm(BRANCHES, _FORK),
            ),
        ),
        Setting(1, (Arm("MCSD 4x2x2x1", _MULTI), Arm(BRANCHES, _FORK))),
    ),
    columns=("tokens_per_round", "nodes", "draft_ms", "tokens_per_s", "ratio"),
    published=(TARGET_INIT_SPEED,),
)

MASK = Experiment(
    "mask",
    "The sliced mask against a rebuilt one",
    "Improving Multi-Candidate Speculative Decoding (Lu et al., 2024), dynamic sliced masks",
    claims=(
        Claim(
            "Slicing a mask that was built once is cheaper than building one for every tree.",
            "the method; no figure of its own is published",
            holds(is_slicing_cheaper),
        ),
        Claim(
            "This makes rounds faster.",
            "the method",
            not_comparable(
                "Here the target needs no mask at all, as each row reads its own range of keys, so"
                " only the draft's masks are left, and they are the shares of a round above."
            ),
        ),
    ),
)
