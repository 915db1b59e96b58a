"""The models that a cluster serves, and the load that suits their speed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.traffic import Errand
from support.services import fleet

TINY, REAL = "tiny", "real"
_REAL_MODEL = "smollm2-135m"
_REAL_SHARE = 8
"""The real model decodes about so many times slower."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the weights of its draft, each a name or a directory."""

    target: str
    draft: str
    share: int = 1
    """Requests ask for this part of the usual number of tokens."""

    def shortened(self, errands: Sequence[Errand]) -> list[Errand]:
        """The errands, as long as this target can answer in a few seconds."""
        return [replace(each, max_tokens=each.max_tokens // self.share) for each in errands]


def tiny_pair(folder: Path) -> Pair:
    """Save an untrained pair in a folder."""
    target = fleet.save_models(folder)
    return Pair(str(target), str(fleet.glide_of(target)))


def real_pair() -> Pair:
    """The real model, which must be in the cache, with its trained draft."""
    return Pair(_REAL_MODEL, "glide", _REAL_SHARE)
