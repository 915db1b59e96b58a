"""What a call to the target may ask for, checked before anything is touched. Knows no cache."""

from slipstream.core.errors import InvalidRequest, PromptTooLong, UnsupportedCombination
from slipstream.core.options import MAX_NODES
from slipstream.core.request import check_logit_bias
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal


def check_call(
    sequence: TokenSequence, proposal: Proposal, *, vocab_size: int, context_length: int
) -> None:
    """Raise `InvalidRequest` for what can't be honoured, whatever the engine holds.

    The ids of the sequence's tokens are not looked at.
    """
    session = sequence.session
    limit = session.num_prompt_tokens + session.max_tokens
    if limit > context_length:
        raise PromptTooLong(
            f"a prompt of {session.num_prompt_tokens} tokens and up to {session.max_tokens}"
            f" new ones exceed the context of {context_length} tokens"
        )
    if session.num_roots > min(MAX_NODES, vocab_size):
        raise InvalidRequest(
            f"{session.num_roots} roots are asked for, but at most {min(MAX_NODES, vocab_size)}"
            " can be drawn"
        )
    if session.num_logprobs is not None and not session.verification.is_lossless:
        raise UnsupportedCombination(
            f"logprobs do not go with verification {session.verification.value}"
        )
    check_logit_bias(session.sampling, vocab_size)
    _check_length(sequence)
    _check_tree(proposal, len(sequence), context_length)


def _check_length(sequence: TokenSequence) -> None:
    """Raise `InvalidRequest` unless the prompt is whole, with room for a token behind it."""
    session, num_tokens = sequence.session, len(sequence)
    first, last = session.num_prompt_tokens, session.num_prompt_tokens + session.max_tokens
    if not first <= num_tokens < last:
        raise InvalidRequest(
            f"the session would have {num_tokens} tokens, but a prompt of {first} and up to"
            f" {session.max_tokens} new ones need {first} to {last - 1}"
        )


def _check_tree(proposal: Proposal, num_tokens: int, context_length: int) -> None:
    tree = proposal.tree
    if len(tree) > MAX_NODES:
        raise InvalidRequest(f"the proposal has {len(tree)} nodes, but at most {MAX_NODES} fit")
    depth = max(tree.depths(), default=0)
    if num_tokens + depth > context_length:
        raise InvalidRequest(
            f"{num_tokens} tokens and a proposal of depth {depth} exceed the context of"
            f" {context_length} tokens"
        )
