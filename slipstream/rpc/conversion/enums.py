"""Enumerations on the wire and in the core, both ways. An unknown number is refused."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.core.grammar import GrammarKind
from slipstream.core.policy.options import Mode
from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.server_info import ReplicaRole, ReplicaState
from slipstream.core.request.tools import ToolFormat
from slipstream.core.types import FinishReason, Shape, StopPolicy, Verification
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


def paired(name: str, wire: Any, kind: type[E]) -> WireEnum[E]:
    """Pair by name: VERIFICATION_MCSD_REPLACEMENT on the wire is mcsd-replacement in the core."""
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    deprecated = {value.number for value in wire.DESCRIPTOR.values if value.GetOptions().deprecated}
    named = {
        number: key.removeprefix(prefix).lower()
        for key, number in wire.items()
        if number and number not in deprecated
    }
    return WireEnum(name, {at: kind(value.replace("_", "-")) for at, value in named.items()})


VERIFICATION = paired("verification", common_pb2.Verification, Verification)
SHAPE = paired("shape", common_pb2.Shape, Shape)
STOP = paired("stop policy", common_pb2.StopPolicy, StopPolicy)
TOOL_FORMAT = paired("tool format", common_pb2.ToolFormat, ToolFormat)
GRAMMAR = paired("kind of grammar", common_pb2.GrammarKind, GrammarKind)
FINISH = paired("finish reason", common_pb2.FinishReason, FinishReason)
MODE = paired("mode", generation_pb2.SpeculationMode, Mode)
ORIGIN = paired("token origin", generation_pb2.TokenOrigin, TokenOrigin)
ROLE = paired("replica role", generation_pb2.ReplicaRole, ReplicaRole)
STATE = paired("replica state", generation_pb2.ReplicaState, ReplicaState)
