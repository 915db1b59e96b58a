"""The SDK with both engines in this process: no network, no other service."""

import secrets
import time
from collections.abc import Iterator, Sequence

from slipstream.client.engine import Engine, EngineOptions
from slipstream.client.prompts import Prompt, encode_prompt, encode_turn
from slipstream.core.errors import SessionBusy, SessionClosed
from slipstream.core.inline import finished, iterated
from slipstream.core.request import Ask, Request, draft_settings, make_request
from slipstream.core.results import Chunk
from slipstream.core.run import Run
from slipstream.draft.build import Drafter


class Embedded:
    """A target and one draft, and the sessions that are open on them."""

    def __init__(self, engine: Engine, drafter: Drafter) -> None:
        self._engine = engine
        self._drafter = drafter
        self._is_closed = False

    @classmethod
    def load(cls, target: str, draft: str, options: EngineOptions) -> "Embedded":
        """Load both models by name."""
        engine = Engine.load(target, options)
        return cls(engine, engine.drafter(draft))

    def conversation(self) -> "Conversation":
        """A new session that keeps its tokens and caches from turn to turn."""
        if self._is_closed:
            raise SessionClosed("the client is closed")
        return Conversation(self._engine, self._drafter)

    def close(self) -> None:
        """Refuse what comes from now on."""
        self._is_closed = True


class Conversation:
    """One session: turns one after the other, each appended to what was said before."""

    def __init__(self, engine: Engine, drafter: Drafter) -> None:
        self.session_id = secrets.token_hex(8)
        self._engine = engine
        self._drafter = drafter
        self._tokens: tuple[int, ...] = ()
        self._is_busy = False
        self._is_closed = False

    def turn(self, prompt: Prompt, ask: Ask) -> Iterator[Chunk]:
        """Run one request. Bad input raises here, before the first chunk is asked for."""
        if self._is_closed:
            raise SessionClosed(f"session {self.session_id} is closed")
        if self._is_busy:
            raise SessionBusy(f"session {self.session_id} is busy with another request")
        request = self._request(prompt, ask)
        return self._chunks(request)

    def close(self) -> None:
        """Free what the engines hold for the session."""
        self._is_closed = True
        finished(self._drafter.draft.release(self.session_id))
        finished(self._engine.target.release(self.session_id))

    def _chunks(self, request: Request) -> Iterator[Chunk]:
        self._is_busy = True
        run = Run(
            self._drafter.draft,
            self._engine.target,
            request,
            detokenise=self._text,
            clock=time.perf_counter,
        )
        try:
            yield from iterated(run.chunks())
        finally:
            self._is_busy = False
            if run.output:  # a turn that was never answered was never said
                self._tokens = (*request.tokens, *run.output)

    def _request(self, prompt: Prompt, ask: Ask) -> Request:
        engine, facts = self._engine, self._drafter.facts
        draft_settings(ask.speculation, facts)  # refused before anything is encoded
        tokens = (*self._tokens, *self._encode(prompt, ask))
        return make_request(self.session_id, tokens, ask, engine.facts, facts)

    def _encode(self, prompt: Prompt, ask: Ask) -> tuple[int, ...]:
        tokenizer = self._engine.tokenizer
        if not self._tokens:
            return encode_prompt(tokenizer, prompt, raw=ask.raw)
        return encode_turn(tokenizer, prompt, last_token=self._tokens[-1], raw=ask.raw)

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._engine.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
