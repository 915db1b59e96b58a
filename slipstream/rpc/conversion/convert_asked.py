"""Grammars and log-probabilities on the wire, both ways: what requests may ask for beside tokens.

`x_from_pb` raises `InvalidRequest` for what is no such value.
"""

from collections.abc import Iterable

from slipstream.core.errors import InvalidRequest
from slipstream.core.grammar import Grammar
from slipstream.core.logprobs import Logprobs, TokenLogprob, TopLogprob
from slipstream.rpc.conversion import enums
from slipstream.rpc.v1 import common_pb2


def grammar_to_pb(grammar: Grammar | None) -> common_pb2.Grammar | None:
    """None stays unset."""
    if grammar is None:
        return None
    kind = enums.GRAMMAR.to_pb(grammar.kind)
    return common_pb2.Grammar(kind=kind, text=grammar.text)  # type: ignore[arg-type]


def grammar_from_pb(message: common_pb2.Grammar) -> Grammar:
    """See `core.verify.grammar.Grammar`."""
    kind = enums.GRAMMAR.from_pb(message.kind)
    if kind is None:
        raise InvalidRequest("a grammar has no kind")
    return Grammar(kind, message.text)


def logprobs_to_pb(logprobs: Logprobs) -> list[common_pb2.TokenLogprob]:
    """See `core.text.logprobs`."""
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
    """See `core.text.logprobs`."""
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
