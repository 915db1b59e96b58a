"""Values of several messages on the wire, both ways: enumerations, dataclasses whose fields a
message has by name, and proposals.

`x_from_pb` raises `InvalidRequest` for what is no such value. What repeats is counted before any of
it becomes a value: a small message can name very many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from slipstream.core.errors import InvalidRequest, refused_as
from slipstream.core.grammar import GrammarKind
from slipstream.core.policy.options import Mode
from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.server_info import ReplicaRole, ReplicaState
from slipstream.core.request.tools import ToolFormat
from slipstream.core.tree import MAX_NODES, ROOT, TokenTree
from slipstream.core.types import (
    FinishReason,
    NodeStats,
    Proposal,
    Shape,
    SparseDistribution,
    StopPolicy,
    Verification,
)
from slipstream.options import without_none
from slipstream.rpc.v1 import common_pb2, generation_pb2

E = TypeVar("E", bound=StrEnum)
M = TypeVar("M", bound=Message)
V = TypeVar("V")


class WireEnum(Generic[E]):
    """One enumeration: numbers of the wire against members of the core."""

    def __init__(self, name: str, numbers: Mapping[int, E]) -> None:
        self.name = name
        self._members = dict(numbers)
        self._numbers = {member: number for number, member in numbers.items()}

    def to_pb(self, member: E | None) -> int:
        """The number; 0, unspecified, for None."""
        return 0 if member is None else self._numbers[member]

    def from_pb(self, number: int, *, may_be_none: bool = True) -> E | None:
        """The member, None where it is unspecified. Raises `InvalidRequest` for an unknown one."""
        if number == 0:
            if may_be_none:
                return None
            raise InvalidRequest(f"the {self.name} is not said")
        if number not in self._members:
            known = ", ".join(str(key) for key in self._members)
            raise InvalidRequest(f"{self.name} is {number}, but must be one of {known}")
        return self._members[number]


def paired(name: str, wire: Any, kind: type[E]) -> WireEnum[E]:
    """Pair by name: VERIFICATION_MCSD_REPLACEMENT on the wire is mcsd-replacement in the core."""
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    numbers = {
        number: kind(key.removeprefix(prefix).lower().replace("_", "-"))
        for key, number in wire.items()
        if number
    }
    return _ENUMS.setdefault(wire.DESCRIPTOR.name, WireEnum(name, numbers))


_ENUMS: dict[str, WireEnum[Any]] = {}
"""Enumerations by their names on the wire."""

VERIFICATION = paired("verification", common_pb2.Verification, Verification)
SHAPE = paired("shape", common_pb2.Shape, Shape)
STOP = paired("stop policy", common_pb2.StopPolicy, StopPolicy)
TOOL_FORMAT = paired("tool format", common_pb2.ToolFormat, ToolFormat)
paired("kind of grammar", common_pb2.GrammarKind, GrammarKind)
FINISH = paired("finish reason", common_pb2.FinishReason, FinishReason)
paired("mode", generation_pb2.SpeculationMode, Mode)
paired("token origin", generation_pb2.TokenOrigin, TokenOrigin)
paired("replica role", generation_pb2.ReplicaRole, ReplicaRole)
paired("replica state", generation_pb2.ReplicaState, ReplicaState)


def message_of(kind: type[M], value: Any, **own: Any) -> M:
    """Return a message of a value's attributes of the same names; `own` are converted already.

    Enumerations, and dataclasses where the message has another one, are converted. None stays
    unset, and is empty in a list.
    """
    given: dict[str, Any] = {}
    for name, convert, is_repeated in _fields_to(kind):  # type: ignore[arg-type]  # a class
        if name not in own and (part := getattr(value, name, None)) is not None:
            if convert is not None:
                part = list(map(convert, part)) if is_repeated else convert(part)
            given[name] = sorted(part) if isinstance(part, frozenset) else part
    return kind(**given | own)


@cache
def _fields_to(kind: Any) -> Sequence[tuple[str, Callable[[Any], Any] | None, bool]]:
    """Return each field's name, conversion if it needs one, and whether it is repeated."""
    found = []
    for wire in kind.DESCRIPTOR.fields:
        convert: Any = None
        if wire.enum_type is not None:
            convert = _ENUMS[wire.enum_type.name].to_pb
        elif _is_map(wire):
            convert = dict
        elif wire.message_type is not None:
            convert = partial(message_of, GetMessageClass(wire.message_type))
        found.append((wire.name, convert, wire.is_repeated and not _is_map(wire)))
    return found


def value_from_pb(kind: type[V], message: Message, **own: Any) -> V:
    """Return a dataclass of the message's fields of the same names; `own` are converted already.

    What is unset, or the message has no field for, takes its default. Raises `InvalidRequest` for
    a member of an enumeration, or a number, that is needed and unset.
    """
    known: dict[str, Any] = {}
    for name, field in _fields_from(kind, type(message)).items():  # type: ignore[arg-type]
        if name in own:
            continue
        value = getattr(message, name)
        if field.is_needed and not message.HasField(name):
            raise InvalidRequest(f"the {name} is not said")
        if field.gather is not None:
            parts = value if field.convert is None else map(field.convert, value)
            known[name] = field.gather(
                sorted(value.items()) if isinstance(value, Mapping) else parts
            )
        elif not field.has_default or (message.HasField(name) if field.has_presence else value):
            known[name] = value if field.convert is None else field.convert(value)
    return kind(**known | own)


class _FieldFrom(NamedTuple):
    convert: Callable[[Any], Any] | None
    gather: Callable[[Any], Any] | None
    """Makes the value of a repeated field's parts."""
    has_presence: bool
    has_default: bool
    """True if what is unset can be told, and takes a default."""
    is_needed: bool
    """True for a number that can be unset, and has no default."""


@cache
def _fields_from(kind: Any, message: Any) -> Mapping[str, _FieldFrom]:
    hints, found = get_type_hints(kind), dict[str, _FieldFrom]()
    for field in fields(kind):
        wire = message.DESCRIPTOR.fields_by_name.get(field.name)
        if wire is None:
            continue
        part, may_be_none = without_none(hints[field.name])
        gather: Any = None
        if wire.is_repeated:
            gather = {tuple: tuple, frozenset: frozenset}.get(get_origin(part), dict)
            part, may_be_none = without_none((*get_args(part), None)[0])
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        convert: Any = None
        if wire.enum_type is not None:
            convert = partial(_ENUMS[wire.enum_type.name].from_pb, may_be_none=may_be_none)
        elif wire.message_type is not None and not _is_map(wire):
            convert = partial(_part, part, may_be_none and wire.is_repeated)
        found[field.name] = _FieldFrom(
            convert,
            gather,
            wire.has_presence,
            has_default and (wire.has_presence or wire.enum_type is not None),
            wire.has_presence and wire.message_type is None and not has_default,
        )
    return found


def _is_map(wire: Any) -> bool:
    return wire.message_type is not None and bool(wire.message_type.GetOptions().map_entry)


def _part(kind: type[V], may_be_none: bool, message: Message) -> V | None:
    """Convert a message within another one; in a list, an empty one may stand for None."""
    return None if may_be_none and not message.ListFields() else value_from_pb(kind, message)


def proposal_to_pb(proposal: Proposal, *, with_stats: bool = True) -> common_pb2.Proposal:
    """Statistics column by column, if at all; scores and distributions only where there are any.

    Raises `InvalidRequest` for ids that are no token's, such as negative ones.
    """
    tree, stats = proposal.tree, proposal.stats if with_stats else ()
    scores = [stat.score for stat in stats if stat.score is not None]
    try:
        laws = [
            common_pb2.NodeLaw(node=index - 1, law=message_of(common_pb2.SparseLaw, own))
            for index, own in enumerate(proposal.distributions)
            if own is not None
        ]
        return common_pb2.Proposal(
            tree=common_pb2.TokenTree(tokens=tree.tokens, parents=tree.parents),
            top_probs=[stat.top_prob for stat in stats],
            probs=[stat.prob for stat in stats],
            entropies=[stat.entropy for stat in stats],
            scores=scores if len(scores) == len(stats) else (),
            laws=laws,
            stopped_by=proposal.stopped_by,
        )
    except ValueError as error:  # out of the range of a field
        raise InvalidRequest(f"the proposal can't be told: {error}") from None


def proposal_from_pb(message: common_pb2.Proposal) -> Proposal:
    """Convert a proposal. Raises `InvalidRequest` for its form; see `check_proposal`."""
    check_proposal_counts(message)
    with refused_as("the proposal's tree is broken:"):
        tree = TokenTree(tuple(message.tree.tokens), tuple(message.tree.parents))
    distributions = _distributions_from_pb(message.laws, len(tree))
    return Proposal(tree, _stats_from_pb(message), distributions, message.stopped_by)


def _stats_from_pb(message: common_pb2.Proposal) -> tuple[NodeStats, ...]:
    columns = (message.top_probs, message.probs, message.entropies)
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or len(message.scores) not in (0, *sizes):
        raise InvalidRequest("the proposal's statistics differ in length from each other")
    scores: Sequence[float | None] = message.scores or [None] * len(message.probs)
    return tuple(NodeStats(*row) for row in zip(*columns, scores, strict=True))


def _distributions_from_pb(
    messages: Sequence[common_pb2.NodeLaw], num_nodes: int
) -> tuple[SparseDistribution | None, ...]:
    if not messages:
        return ()
    distributions: list[SparseDistribution | None] = [None] * (num_nodes + 1)
    for message in messages:
        if not ROOT <= message.node < num_nodes:
            raise InvalidRequest(f"a distribution is for node {message.node} of {num_nodes}")
        distributions[message.node + 1] = value_from_pb(SparseDistribution, message.law)
    return tuple(distributions)


MAX_DISTRIBUTION_TOKENS = 256
"""A draft cuts its distributions to 64 tokens, or to one for every child of a node."""


def check_proposal_counts(message: common_pb2.Proposal) -> None:
    """Raise `InvalidRequest` for more nodes, distributions or tokens than any proposal has."""
    num_nodes = len(message.tree.tokens)
    check_count("nodes of a proposal", num_nodes, MAX_NODES)
    check_count("parents of its nodes", len(message.tree.parents), MAX_NODES)
    check_count("distributions of its nodes", len(message.laws), num_nodes + 1)
    for node in message.laws:
        check_count("tokens of a distribution", len(node.law.tokens), MAX_DISTRIBUTION_TOKENS)
        check_count("probabilities of a distribution", len(node.law.probs), MAX_DISTRIBUTION_TOKENS)


def check_count(name: str, count: int, limit: int) -> None:
    """Raise `InvalidRequest` for more things than a limit."""
    if count > limit:
        raise InvalidRequest(f"{count} {name} are told, but at most {limit} may be")
