"""Questions as token ids, by the target's own tokenizer and chat template."""

from collections.abc import Sequence

from slipstream.bench.peers.plan import PromptIds
from slipstream.bench.questions import Question, in_turn
from slipstream.models.loading import find_sources, load_tokenizer, require_causal
from slipstream.models.store.resolve import resolve
from slipstream.models.tokenizer import text_tokenizer
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer


def target_tokenizer(target: str) -> TextTokenizer:
    """The tokenizer of a target; loads no weights."""
    return text_tokenizer(load_tokenizer(*find_sources(resolve(target))))


def encoded(questions: Sequence[Question], tokenizer: TextTokenizer) -> tuple[PromptIds, ...]:
    """The first turn of each, in an order in which categories alternate."""
    return tuple(
        PromptIds(at.question_id, at.category, encode_prompt(tokenizer, at.turns[0]))
        for at in in_turn(questions)
    )


def context_length(target: str) -> int | None:
    """Tokens that the target was made for; None where its configuration does not say."""
    folder, gguf = find_sources(resolve(target))
    if gguf is not None:
        return None
    length: int | None = getattr(
        require_causal(folder).get_text_config(), "max_position_embeddings", None
    )
    return length
