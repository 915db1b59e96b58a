"""Sources of training data: prompts, conversations and passages of text, out of files."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.data import parse_line, read_lines

Ids = tuple[int, ...]

_LINES = (".jsonl", ".jsonl.gz")
_TEXTS = (".txt", ".md")


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversation: ids of its opening, and the user's text after each answer."""

    prompt: Ids
    turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of reading files.

    Prompts of more than `max_prompt_tokens` are left out and counted. Plain text is cut into
    passages of `passage_tokens`, which the target goes on from, or which are taken as they are.
    """

    max_prompt_tokens: int = 864
    passage_tokens: int = 256
    is_text_as_is: bool = False

    def __post_init__(self) -> None:
        if self.max_prompt_tokens < 1:
            raise TrainingError(
                f"max_prompt_tokens is {self.max_prompt_tokens}, it must be at least 1"
            )
        if self.passage_tokens < 2:
            raise TrainingError(f"passage_tokens is {self.passage_tokens}, it must be at least 2")
        if not self.is_text_as_is and self.passage_tokens > self.max_prompt_tokens:
            raise TrainingError(
                f"passages of {self.passage_tokens} tokens are longer than the longest prompt, "
                f"{self.max_prompt_tokens}"
            )


@dataclass(frozen=True, slots=True)
class TextSources:
    """Contents of files: conversations, texts to take as they are, prompts that were too long.

    `digests` has the name and SHA-256 of every file, in the order given.
    """

    talks: tuple[Talk, ...]
    texts: tuple[Ids, ...]
    digests: tuple[tuple[str, str], ...]
    num_skipped: int


def read_sources(
    paths: Sequence[Path], tokenizer: TextTokenizer, settings: SourceSettings
) -> TextSources:
    """Read prompt files; TrainingError names the file and line that can't be used."""
    talks: list[Talk] = []
    texts: list[Ids] = []
    digests = []
    for path in paths:
        if not path.name.endswith(_LINES + _TEXTS):
            raise TrainingError(f"{path} is none of {', '.join(_LINES + _TEXTS)}")
        raw, lines = read_lines(path)
        digests.append((path.name, hashlib.sha256(raw).hexdigest()))
        if path.name.endswith(_LINES):
            talks += _talks(path, lines, tokenizer)
        elif settings.is_text_as_is:
            texts += _passages(path, lines, tokenizer, settings.passage_tokens)
        else:
            parts = _passages(path, lines, tokenizer, settings.passage_tokens)
            talks += [Talk(part) for part in parts]
    kept = [talk for talk in talks if len(talk.prompt) <= settings.max_prompt_tokens]
    return TextSources(tuple(kept), tuple(texts), tuple(digests), len(talks) - len(kept))


def _talks(path: Path, lines: Sequence[str], tokenizer: TextTokenizer) -> Iterator[Talk]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield _talk(parse_line(line, where), where, tokenizer)
            except InvalidRequest as error:
                raise TrainingError(f"{where} can't be used: {error}") from None


def _talk(item: Any, where: str, tokenizer: TextTokenizer) -> Talk:
    """Parse {"prompt": text}, {"turns": [text, ...]} or {"p": [id, ...]}; "g" is answered anew."""
    fields = item if isinstance(item, dict) else {}
    turns = [fields["prompt"]] if "prompt" in fields else fields.get("turns")
    if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
        return Talk(encode_prompt(tokenizer, turns[0]), tuple(turns[1:]))
    if turns is None and isinstance(fields.get("p"), list):
        return Talk(encode_prompt(tokenizer, fields["p"]))
    raise TrainingError(f'{where} has no "prompt" of text, "turns" of texts or "p" of ids')


def _passages(
    path: Path, lines: Sequence[str], tokenizer: TextTokenizer, num_tokens: int
) -> Iterator[Ids]:
    """Yield a text in pieces of `num_tokens`, each behind the tokenizer's opening."""
    text = "\n".join(lines)
    if not text.strip():
        raise TrainingError(f"{path} holds no text")
    try:
        opening = _opening(tokenizer)
        ids = tokenizer.encode(text, add_special_tokens=False)
    except InvalidRequest as error:
        raise TrainingError(f"{path} can't be used: {error}") from None
    size = num_tokens - len(opening)
    if size < 1:
        raise TrainingError(f"passages of {num_tokens} tokens have no room for text")
    for start in range(0, len(ids), size):
        yield opening + tuple(ids[start : start + size])


def _opening(tokenizer: TextTokenizer) -> Ids:
    """Return the special tokens that the tokenizer begins every text with; often none."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a", add_special_tokens=True)
    at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:at])
