"""Enumerations on the wire and in the core, both ways. An unknown number is refused."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.options import Mode
from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.server_info import ReplicaRole, ReplicaState
from slipstream.core.request.tools import ToolFormat
from slipstream.core.types import FinishReason, Shape, StopPolicy, Verification
from slipstream.core.verify.grammar import GrammarKind
from slipstream.rpc.v1 import common_pb2, generation_pb2

E = TypeVar("E", bound=StrEnum)


class WireEnum(Generic[E]):
    """One enumeration: numbers of the wire against members of the core."""

    def __init__(self, name: str, numbers: Mapping[int, E]) -> None:
        self._name = name
        self._members = dict(numbers)
        self._numbers = {member: number for number, member in numbers.items()}

    def to_pb(self, member: E | None) -> int:
        """The number; 0, unspecified, for None."""
        return 0 if member is None else self._numbers[member]

    def from_pb(self, number: int) -> E | None:
        """The member, None where it is unspecified. Raises `InvalidRequest` for an unknown one."""
        if number == 0:
            return None
        if number not in self._members:
            known = ", ".join(str(key) for key in self._members)
            raise InvalidRequest(f"{self._name} is {number}, but must be one of {known}")
        return self._members[number]


def _numbers(wire: Mapping[str, int], kind: type[E], prefix: str) -> dict[int, E]:
    """Pairs by name: MCSD_REPLACEMENT on the wire is mcsd-replacement in the core."""
    return {
        number: kind(name.removeprefix(prefix).lower().replace("_", "-"))
        for name, number in wire.items()
        if number
    }


VERIFICATION = WireEnum(
    "verification", _numbers(dict(common_pb2.Verification.items()), Verification, "VERIFICATION_")
)
SHAPE = WireEnum("shape", _numbers(dict(common_pb2.Shape.items()), Shape, "SHAPE_"))
STOP = WireEnum(
    "stop policy", _numbers(dict(common_pb2.StopPolicy.items()), StopPolicy, "STOP_POLICY_")
)
TOOL_FORMAT = WireEnum(
    "tool format", _numbers(dict(common_pb2.ToolFormat.items()), ToolFormat, "TOOL_FORMAT_")
)
GRAMMAR = WireEnum(
    "kind of grammar", _numbers(dict(common_pb2.GrammarKind.items()), GrammarKind, "GRAMMAR_KIND_")
)
FINISH = WireEnum(
    "finish reason", _numbers(dict(common_pb2.FinishReason.items()), FinishReason, "FINISH_REASON_")
)
MODE = WireEnum(
    "mode", _numbers(dict(generation_pb2.SpeculationMode.items()), Mode, "SPECULATION_MODE_")
)
ORIGIN = WireEnum(
    "token origin", _numbers(dict(generation_pb2.TokenOrigin.items()), TokenOrigin, "TOKEN_ORIGIN_")
)
ROLE = WireEnum(
    "replica role", _numbers(dict(generation_pb2.ReplicaRole.items()), ReplicaRole, "REPLICA_ROLE_")
)
STATE = WireEnum(
    "replica state",
    _numbers(dict(generation_pb2.ReplicaState.items()), ReplicaState, "REPLICA_STATE_"),
)
