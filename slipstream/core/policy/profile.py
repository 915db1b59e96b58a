"""Profile of a pair of models: calibrated defaults of requests. A value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from slipstream.core.draft.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.backoff import GainPrior
from slipstream.core.policy.overlap import OverlapGain
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS, Calibration, make_stop
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import Shape, StopPolicy


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated defaults of one pair of models.

    `calibration` maps the draft's confidence to the probability of acceptance. Greedy requests and
    sampled ones agree with a draft differently, hence a threshold and a calibration for each. What
    followed an earlier match of `lookup` tokens or more is copied (0: nothing is).

    The time of a draft step, `step_cost`, and that of one more token to verify, `row_cost`, both
    over that of a plain round, belong to a machine: None is what is measured there.
    """

    shape: Shape = Shape.CAPE
    stop: StopPolicy = StopPolicy.SVIP
    threshold: float | None = None
    threshold_sampled: float | None = None
    max_depth: int = 8
    max_nodes: int = 31
    step_cost: float | None = None
    row_cost: float | None = None
    lookup: int = 0
    cape_table: tuple[int, ...] = PAPER_TABLE
    calibration: Calibration = field(default_factory=Calibration)
    calibration_sampled: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= MAX_DRAFT_TOKENS:
            raise InvalidRequest(f"a profile's max_depth is {self.max_depth}, not 1 to 40")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidRequest(f"a profile's max_nodes is {self.max_nodes}, not 1 to 127")
        for name in ("step_cost", "row_cost", "lookup"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidRequest(f"a profile's {name} is {value}, not 0 or more")
        if self.shape in (Shape.PRODUCT, Shape.FORK):
            raise InvalidRequest(f"a profile's shape is {self.shape.value}, which needs a request")
        if not self.cape_table or min(self.cape_table) < 0:
            raise InvalidRequest(
                f"a profile's cape_table is {self.cape_table}, but needs counts of 0 or more"
            )
        for threshold in (self.threshold, self.threshold_sampled):
            make_stop(self.stop, threshold, cost_ratio=1.0)

    def threshold_at(self, temperature: float) -> float | None:
        """The threshold of its stop policy, for requests at this temperature."""
        return self.threshold_sampled if temperature else self.threshold

    def calibration_at(self, temperature: float) -> Calibration:
        """Return the calibration of the draft's confidence at this temperature."""
        return self.calibration_sampled if temperature else self.calibration


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Facts of a draft, as it describes itself: its kind, calibrated defaults and abilities.

    `kind` is glide, vanilla, ngram or none; `max_lag` is the longest path it was trained for;
    `step_s` is what a draft step took when it was loaded, in seconds.
    """

    kind: str
    profile: Profile = field(default_factory=Profile)
    has_decision_model: bool = False
    max_lag: int | None = None
    step_s: float | None = None
    experience: GainPrior = field(default_factory=GainPrior, compare=False)
    """Gain of the draft in the requests so far."""
    overlap_gain: OverlapGain | None = field(default=None, compare=False)
    """Gain of drafting while the target verified; None for a draft in the target's process."""


NGRAM = DraftFacts(
    "ngram",
    Profile(shape=Shape.DYNAMIC, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8, max_nodes=15),
)
"""Facts of this draft."""


def profile_values(profile: Profile) -> dict[str, Any]:
    """Every field as JSON takes it."""
    values = _plain(profile)
    assert isinstance(values, dict)
    return values


def profile_from_values(values: object, *, place: str) -> Profile:
    """The profile of these values; what is not among them keeps its default.

    Raises `InvalidRequest`, which names `place`, for an unknown field, a value of another type
    and one out of range.
    """
    profile = _built(values, Profile, place)
    assert isinstance(profile, Profile)
    return profile


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _built(values: object, kind: Any, place: str) -> Any:
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{place} is no object of fields")
    kinds = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise InvalidRequest(f"{place} has {name!r}, but known are {', '.join(known)}")
    given = {
        name: _read(value, kinds[name], f"{name} of {place}") for name, value in values.items()
    }
    try:
        return kind(**given)
    except InvalidRequest as error:
        raise InvalidRequest(f"{place} can't be used: {error}") from None


def _read(value: Any, kind: Any, place: str) -> Any:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
        if value is None:
            return None
    if is_dataclass(kind):
        return _built(value, kind, place)
    if get_origin(kind) is tuple:
        return _items(value, get_args(kind)[0], place)
    if issubclass(kind, Enum):
        return _member(value, kind, place)
    return _scalar(value, kind, place)


def _items(value: Any, kind: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{place} is {value!r}, but must be a list")
    return tuple(_scalar(item, kind, f"an item in {place}") for item in value)


def _member(value: Any, kind: type[Enum], place: str) -> Enum:
    known = {member.value: member for member in kind}
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"{place} is {value!r}, but must be one of {', '.join(known)}")
    return known[value]


def _scalar(value: Any, kind: type, place: str) -> Any:
    wanted = (int, float) if kind is float else (kind,)
    # A bool is an int, but none was meant; and no field takes what is no number.
    if type(value) not in wanted or (kind is float and not math.isfinite(value)):
        raise InvalidRequest(f"{place} is {value!r}, but must be of the kind {kind.__name__}")
    return float(value) if kind is float else value
