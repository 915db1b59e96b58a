"""Prompts that the target writes itself: it goes on where its chat template has the user speak.

Knows templates and text; nothing of models, batches or shards.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream.core.errors import TrainingError
from slipstream.text.tokenizer import TextTokenizer

_SAID = "SLIPSTREAMUSER"
"""Stands for what the user says. No template trims or rewrites it."""
_MIN_CHARS = 8


@dataclass(frozen=True, slots=True)
class UserOpening:
    """Ids up to where the user speaks, and the ids that end what the user says."""

    prompt: tuple[int, ...]
    ends: frozenset[int]


def user_opening(
    tokenizer: TextTokenizer, *, ends: Collection[int], special: Collection[int]
) -> UserOpening:
    """From a conversation of one message, cut where the message stands.

    The turn ends at any of `ends`, or at what the template writes behind it if that is one of
    the `special` ids. Raises `InvalidRequest` without a template and TrainingError for one that
    writes the message not just once.
    """
    parts = tokenizer.render([{"role": "user", "content": _SAID}]).split(_SAID)
    if len(parts) != 2:
        raise TrainingError("the chat template does not show where the user speaks")
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
    if not before:
        raise TrainingError("the chat template puts nothing before what the user says")
    closing = {token for token in after[:1] if token in special}
    if not closing and not ends:
        raise TrainingError("the chat template puts no special token behind what the user says")
    return UserOpening(tuple(before), frozenset(ends) | closing)


def usable_prompts(
    turns: Sequence[Sequence[int]],
    tokenizer: TextTokenizer,
    *,
    ends: Collection[int],
    special: Collection[int],
) -> list[str]:
    """The texts of those turns that ended by themselves, read like text, and are new; in order."""
    texts = []
    for turn in turns:
        body = turn[:-1]
        if turn and turn[-1] in ends and not any(token in special for token in body):
            texts.append(tokenizer.decode(body).strip())
    return [text for text in dict.fromkeys(texts) if _reads_like_text(text)]


def _reads_like_text(text: str) -> bool:
    """Long enough, with letters, whole in UTF-8 and without control characters."""
    if len(text) < _MIN_CHARS or not any(letter.isalpha() for letter in text):
        return False
    return all(letter.isprintable() or letter in "\n\t" for letter in text.replace("\ufffd", "\0"))
