"""How much of the experiments to run. Values only."""

from dataclasses import dataclass

from slipstream.bench.papers.experiment import Experiment
from slipstream.bench.questions import Question
from slipstream.core.errors import InvalidRequest

MARKS = (128, 256, 512, 1024, 2048, 4096)
"""Lengths at which the speed of one long output is read off."""
PIECE = 128
"""Tokens of it after which all arms' times are noted."""


@dataclass(frozen=True, slots=True)
class PapersPlan:
    """What to run. `num_seeds` first tokens are drawn for each of `num_laws` prompts."""

    experiments: tuple[Experiment, ...]
    questions: tuple[Question, ...]
    max_new_tokens: int = 64
    repeats: int = 1
    warmup: int = 1
    seed: int = 0
    long_tokens: int = MARKS[-1]
    num_seeds: int = 200
    num_laws: int = 3
    mask_rounds: int = 100

    def __post_init__(self) -> None:
        ones = ("repeats", "num_seeds", "num_laws", "mask_rounds")
        least = {"max_new_tokens": 2, "warmup": 0, "long_tokens": PIECE, **dict.fromkeys(ones, 1)}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least {low}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those that any experiment has arms at."""
        found = {at.temperature for of in self.experiments for at in of.settings}
        return tuple(sorted(found))
