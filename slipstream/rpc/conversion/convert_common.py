"""Values of several messages on the wire, both ways: enumerations, proposals, grammars
and log-probabilities.

`x_from_pb` raises `InvalidRequest` for what is no such value. What repeats is counted before any of
it becomes a value: a small message can name very many.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from slipstream.core.draft.ahead import AheadTree
from slipstream.core.errors import InvalidRequest
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.logprobs import MAX_LOGPROBS, Logprobs, TokenLogprob, TopLogprob
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
from slipstream.rpc.v1 import common_pb2, draft_pb2, generation_pb2, target_pb2

E = TypeVar("E", bound=StrEnum)
V = TypeVar("V")


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
    return WireEnum(
        name, {number: kind(value.replace("_", "-")) for number, value in named.items()}
    )


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


def fields_of(value: Any, **own: Any) -> dict[str, Any]:
    """Return a dataclass's fields by name, for a message with the same; `own` are converted."""
    return {field.name: getattr(value, field.name) for field in fields(value)} | own


def value_from_pb(kind: type[V], message: Message, **own: Any) -> V:
    """Return a dataclass of the message's fields of the same names; `own` are converted already.

    What is optional and unset is None; what the message has no field for takes its default.
    """
    known: dict[str, Any] = {}
    descriptors = message.DESCRIPTOR.fields_by_name
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    for name in names.intersection(descriptors.keys()):
        value, descriptor = getattr(message, name), descriptors[name]
        if isinstance(value, Mapping):
            value = dict(sorted(value.items()))
        elif descriptor.is_repeated:
            value = tuple(value)
        elif descriptor.has_presence and not message.HasField(name):
            value = None
        known[name] = value
    return kind(**known | own)


def proposal_to_pb(proposal: Proposal, *, with_stats: bool = True) -> common_pb2.Proposal:
    """Statistics column by column, if at all; scores and distributions only where there are any.

    Raises `InvalidRequest` for ids that are no token's, such as negative ones.
    """
    try:
        return _proposal_to_pb(proposal, proposal.stats if with_stats else ())
    except ValueError as error:  # out of the range of a field
        raise InvalidRequest(f"the proposal can't be told: {error}") from None


def _proposal_to_pb(proposal: Proposal, stats: Sequence[NodeStats]) -> common_pb2.Proposal:
    scores = [stat.score for stat in stats if stat.score is not None]
    laws = [
        common_pb2.NodeLaw(
            node=index - 1, law=common_pb2.SparseLaw(tokens=own.tokens, probs=own.probs)
        )
        for index, own in enumerate(proposal.distributions)
        if own is not None
    ]
    return common_pb2.Proposal(
        tree=common_pb2.TokenTree(tokens=proposal.tree.tokens, parents=proposal.tree.parents),
        top_probs=[stat.top_prob for stat in stats],
        probs=[stat.prob for stat in stats],
        entropies=[stat.entropy for stat in stats],
        scores=scores if len(scores) == len(stats) else (),
        laws=laws,
        stopped_by=proposal.stopped_by,
    )


def proposal_from_pb(message: common_pb2.Proposal) -> Proposal:
    """Convert a proposal. Raises `InvalidRequest` for its form; see `check_proposal`."""
    check_proposal_counts(message)
    tree = _tree_from_pb(message.tree)
    distributions = _distributions_from_pb(message.laws, len(tree))
    return Proposal(tree, _stats_from_pb(message), distributions, message.stopped_by)


def ahead_to_pb(tree: Proposal) -> draft_pb2.SpeculateResponse:
    """Convert a tree that a draft went on with into a message of its stream."""
    return draft_pb2.SpeculateResponse(ahead=draft_pb2.DraftedAhead(tree=proposal_to_pb(tree)))


def ahead_from_pb(message: common_pb2.Proposal) -> AheadTree:
    """Convert a tree that a draft went on with. Raises `InvalidRequest` for its form."""
    check_proposal_counts(message)
    columns = (message.top_probs, message.probs, message.entropies)
    return AheadTree(_tree_from_pb(message.tree), *map(tuple, columns))


def _tree_from_pb(message: common_pb2.TokenTree) -> TokenTree:
    try:
        return TokenTree(tuple(message.tokens), tuple(message.parents))
    except ValueError as error:
        raise InvalidRequest(f"the proposal's tree is broken: {error}") from None


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
        tokens, probs = tuple(message.law.tokens), tuple(message.law.probs)
        distributions[message.node + 1] = SparseDistribution(tokens, probs)
    return tuple(distributions)


MAX_DISTRIBUTION_TOKENS = 256
"""A draft cuts its distributions to 64 tokens, or to one for every child of a node."""


def check_proposal_counts(message: common_pb2.Proposal) -> None:
    """Raise `InvalidRequest` for more nodes, distributions or tokens than any proposal has."""
    num_nodes = len(message.tree.tokens)
    _check("nodes of a proposal", num_nodes, MAX_NODES)
    _check("parents of its nodes", len(message.tree.parents), MAX_NODES)
    _check("distributions of its nodes", len(message.laws), num_nodes + 1)
    for node in message.laws:
        _check("tokens of a distribution", len(node.law.tokens), MAX_DISTRIBUTION_TOKENS)
        _check("probabilities of a distribution", len(node.law.probs), MAX_DISTRIBUTION_TOKENS)


def check_verdict_counts(message: target_pb2.Verdict) -> None:
    """Raise `InvalidRequest` for more of anything than a verdict on any proposal has."""
    for name in ("tokens", "roots", "forced", "logprobs"):
        _check(f"{name} of a verdict", len(getattr(message, name)), MAX_NODES + 1)
    for item in message.logprobs:
        _check("likeliest tokens of a position", len(item.top), MAX_LOGPROBS)


def _check(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{count} {name} are told, but at most {limit} may be")


def grammar_to_pb(grammar: Grammar | None) -> common_pb2.Grammar | None:
    """None stays unset."""
    if grammar is None:
        return None
    kind = GRAMMAR.to_pb(grammar.kind)
    return common_pb2.Grammar(kind=kind, text=grammar.text)  # type: ignore[arg-type]


def grammar_from_pb(message: common_pb2.Grammar) -> Grammar:
    kind = GRAMMAR.from_pb(message.kind)
    if kind is None:
        raise InvalidRequest("a grammar has no kind")
    return Grammar(kind, message.text)


def logprobs_to_pb(logprobs: Logprobs) -> list[common_pb2.TokenLogprob]:
    return [_to_pb(item) for item in logprobs]


def known_logprobs_from_pb(
    messages: Iterable[common_pb2.TokenLogprob], *, num_tokens: int
) -> tuple[TokenLogprob, ...]:
    """Convert the log-probabilities of a verdict: of each token, or of none."""
    known = tuple(item for item in logprobs_from_pb(messages) if item is not None)
    if len(known) not in (0, num_tokens):
        raise InvalidRequest(f"{len(known)} log-probabilities are of {num_tokens} tokens")
    return known


def logprobs_from_pb(messages: Iterable[common_pb2.TokenLogprob]) -> Logprobs:
    return tuple(_from_pb(message) for message in messages)


def _to_pb(item: TokenLogprob | None) -> common_pb2.TokenLogprob:
    if item is None:
        return common_pb2.TokenLogprob()
    top = [
        common_pb2.TopLogprob(token_id=other.token_id, logprob=other.logprob, text=other.text)
        for other in item.top
    ]
    return common_pb2.TokenLogprob(logprob=item.logprob, top=top, text=item.text)


def _from_pb(message: common_pb2.TokenLogprob) -> TokenLogprob | None:
    if not message.HasField("logprob"):
        return None
    top = tuple(TopLogprob(other.token_id, other.logprob, other.text) for other in message.top)
    return TokenLogprob(message.logprob, top, message.text)
