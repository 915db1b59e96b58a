"""All experiments by their ids, in the order of the page. Data."""

from collections.abc import Mapping

from slipstream.bench.papers.candidates import MASK, MCSD, TARGET_INIT
from slipstream.bench.papers.drafts import CAPE, EAGLE2, GLIDE
from slipstream.bench.papers.experiment import Experiment
from slipstream.bench.papers.stopping import DECIDING, LONG, SVIP_RULE
from slipstream.core.errors import InvalidRequest

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.experiment_id: experiment
    for experiment in (
        GLIDE,
        CAPE,
        SVIP_RULE,
        LONG,
        MCSD,
        TARGET_INIT,
        MASK,
        DECIDING,
        EAGLE2,
    )
}


def chosen(names: str) -> tuple[Experiment, ...]:
    """Those of a list with commas, in the page's order; all of them for an empty one."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in EXPERIMENTS:
            raise InvalidRequest(
                f"experiment {name!r} is unknown; there are {', '.join(EXPERIMENTS)}"
            )
    return tuple(of for name, of in EXPERIMENTS.items() if not wanted or name in wanted)
