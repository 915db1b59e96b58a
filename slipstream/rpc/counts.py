"""Counts of what repeats in messages, checked before any of it becomes a value.

A small message can name very many: of numbers that take a byte each, or of messages without any.
"""

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.tree import MAX_NODES
from slipstream.rpc.v1 import common_pb2, target_pb2

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
