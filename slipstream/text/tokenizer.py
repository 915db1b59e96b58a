"""Text to token ids and back, as transformers does it, in a process that never loads it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from slipstream.core.errors import InvalidRequest, PromptTooLong, WeightsError
from slipstream.core.request.tools import Tool
from slipstream.core.text import check_unicode
from slipstream.text.control_tokens import BREAK, ControlTokens
from slipstream.text.template import ChatTemplate, Messages, Now, Variables
from slipstream.text.token_bytes import TokenTable
from slipstream.text.tool_prompt import as_text, broken_call, for_template, tool_json

PIECE_CHARS = 1 << 16
"""Characters of a long text that are encoded at a time to see whether all of it may fit."""
CUT_TOKENS = 256
"""Tokens that a piece may have more than within its text: its words are cut at both ends."""


class TokenizerParts(NamedTuple):
    """All that a `TextTokenizer` is made of."""

    json: bytes
    """The tokenizer in the format of the `tokenizers` library."""
    chat_template: str
    """The template in Jinja; empty for none."""
    special_tokens: Mapping[str, str]
    """Tokens that templates may name, such as bos_token."""


class TextTokenizer:
    """A tokenizer and the chat template of a model. Any number of threads may use it at once."""

    def __init__(self, parts: TokenizerParts, backend: Tokenizer, template: ChatTemplate) -> None:
        """See `from_parts`; `backend` must be this instance's own, and without truncation."""
        self._parts = parts
        self._backend = backend
        self._template = template
        self._num_tokens = backend.get_vocab_size(with_added_tokens=True)
        self._control = ControlTokens(backend)

    @classmethod
    def from_parts(
        cls,
        json: bytes,
        chat_template: str,
        special_tokens: Mapping[str, str],
        *,
        now: Now = datetime.now,
    ) -> "TextTokenizer":
        """Return a tokenizer of what `parts` gave; `now` is the clock that templates may use.

        Raises `WeightsError` for JSON that is no tokenizer, `InvalidRequest` for a template or
        special tokens out of bounds.
        """
        special_tokens = MappingProxyType(dict(special_tokens))
        template = ChatTemplate(chat_template, special_tokens, now)
        return cls(TokenizerParts(json, chat_template, special_tokens), _backend(json), template)

    def parts(self) -> TokenizerParts:
        """Return what `from_parts` makes the same tokenizer of."""
        return self._parts

    @property
    def chat_template(self) -> str:
        return self._parts.chat_template

    def __len__(self) -> int:
        """Return the number of tokens, those added to the model's vocabulary included."""
        return self._num_tokens

    @cached_property
    def vocab_hash(self) -> str:
        vocab = self._backend.get_vocab(with_added_tokens=True)
        del vocab[BREAK]
        return vocab_hash(vocab)

    def ids(self) -> frozenset[int]:
        """Return the ids of all tokens, those added to the model's vocabulary included."""
        vocab = self._backend.get_vocab(with_added_tokens=True)
        return frozenset(vocab.values()) - {self._control.break_id}

    def added_ids(self) -> list[int]:
        """Return the ids of special tokens and of others that were added, ascending."""
        return sorted(self._backend.get_added_tokens_decoder().keys() - {self._control.break_id})

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None where there is no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(
        self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a text; special tokens that are written in it become such.

        Those that `as_text` and `render` have broken stay text.
        `add_special_tokens` puts the model's own around it, such as one that begins every text.
        Raises `InvalidRequest` for text that is not Unicode, or that has no tokens, and
        `PromptTooLong` for text that has far more than `max_tokens`, without encoding all of it.
        """
        check_unicode(text, "the text")
        if max_tokens is not None:
            self.check_length(text, max_tokens)
        ids: list[int] = self._encoding(text, add_special_tokens=add_special_tokens).ids
        return [token for token in ids if token != self._control.break_id] if BREAK in text else ids

    def check_length(self, text: str, max_tokens: int) -> None:
        """Raise `PromptTooLong` for a long text that has far more than `max_tokens`.

        It is encoded in pieces, and no further than to the one that is too much.
        """
        if len(text) <= PIECE_CHARS:
            return
        num_tokens = 0
        for start in range(0, len(text), PIECE_CHARS):
            piece = self._encoding(text[start : start + PIECE_CHARS], add_special_tokens=False)
            num_tokens += max(len(piece) - CUT_TOKENS, 0)
            if num_tokens > max_tokens:
                raise PromptTooLong(
                    f"a text of {len(text)} characters has more than {max_tokens} tokens, the"
                    " context's"
                )

    def _encoding(self, text: str, *, add_special_tokens: bool) -> Encoding:
        try:
            # A batch is encoded without Python's lock; a text alone would hold it.
            batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return batch[0]
        except BaseException as error:  # the library raises nothing more precise
            _check_panic(error)
            raise InvalidRequest(f"the text can't be turned into tokens ({error})") from None

    def as_text(self, text: str) -> str:
        """Return a text that `encode` takes for text, also the names of special tokens in it.

        Raises `InvalidRequest` for text that can only be read as such a token.
        """
        return self._control.as_text(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens, otherwise as the tokens have it.

        Ids that are no token's are passed over. Incomplete UTF-8 becomes U+FFFD.
        """
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, token_id: int) -> bytes:
        return self.table.token_bytes(token_id)

    def render(self, messages: Messages, tools: Sequence[Tool] = (), own: Variables = None) -> str:
        """Return a conversation as the chat template writes it, up to where the model is to answer.

        To `encode`, all special tokens in it are the template's: what messages, tools and
        variables have of their names is broken. Raises `InvalidRequest` without a template, or when
        it refuses these messages.
        """
        control, template = self._control, self._template
        shown = [tool_json(tool) for tool in tools]
        if template.takes_tools:
            given = [
                for_template(message, f"messages[{place}]")
                for place, message in enumerate(messages)
            ]
        else:
            given, shown = as_text(messages, shown), []
        safe, shown, variables = _changed([given, shown, own or {}], control.as_text)
        try:
            text = template.render(safe, shown, variables)
        except InvalidRequest as error:
            if (place := broken_call(given)) is None:
                raise
            raise InvalidRequest(
                f"{error}; the arguments of {place} are no JSON object, which it may need"
            ) from None
        apart, variables_apart = _changed([safe, variables], control.apart)
        if (apart, variables_apart) == (safe, variables):
            return text
        # An end of a message is part of a special token only if a break there leaves fewer of them.
        broken = template.render(apart, shown, variables_apart)
        return text if control.count(text) == control.count(broken) else broken

    @cached_property
    def table(self) -> TokenTable:
        """Return its tokens and its decoder alone."""
        return TokenTable.of(self._backend, without=self._control.break_id)

    def try_template(self) -> None:
        """Find how the chat template takes messages, so that the first prompt need not wait."""
        _ = self._template.roles_in_parts


def vocab_hash(vocab: Mapping[str, int]) -> str:
    """Return the SHA-256 of the (id, token) pairs in id order: equal where ids mean the same."""
    digest = hashlib.sha256()
    for token, index in sorted(vocab.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{index}\t{token}\n".encode())
    return digest.hexdigest()


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _changed(item, change) for name, item in value.items()}
    return value


def _check_panic(error: BaseException) -> None:
    """Raise an interrupt again: beside errors, a panic of the library is no `Exception` either."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _backend(json: bytes) -> Tokenizer:
    try:
        backend = Tokenizer.from_buffer(json)
    except BaseException as error:  # the library raises nothing more precise
        _check_panic(error)
        raise WeightsError(
            f"a tokenizer of {len(json)} bytes can't be read ({str(error).rstrip('.')})"
        ) from None
    if not backend.get_vocab_size(with_added_tokens=True):
        raise WeightsError("the tokenizer has no tokens")
    # Texts are never truncated or padded here, whatever the file has.
    backend.no_truncation()
    backend.no_padding()
    return backend
