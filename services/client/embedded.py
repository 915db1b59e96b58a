"""The SDK with both engines in this process: no network, no other service."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.client.engine import Drafter, Engine, EngineOptions
from slipstream.client.inline import finished
from slipstream.client.prompts import Prompt, encode_prompt, encode_turn
from slipstream.client.request import Request, Run
from slipstream.client.results import Chunk
from slipstream.core.errors import InvalidRequest, PromptTooLong, SessionBusy, SessionClosed
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.planner import Settings, resolve
from slipstream.core.text import check_stop_strings
from slipstream.core.types import SamplingParams, Session


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants of one request, beside the prompt."""

    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    speculation: SpeculationOptions
    raw: bool = False


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
        run = Run(self._engine, self._drafter, request, time.perf_counter)
        try:
            yield from run.chunks()
        finally:
            self._is_busy = False
            if run.output:  # a turn that was never answered was never said
                self._tokens = (*request.tokens, *run.output)

    def _request(self, prompt: Prompt, ask: Ask) -> Request:
        settings = self._settings(ask.speculation)
        check_stop_strings(ask.stop)
        tokens = (*self._tokens, *self._encode(prompt, ask))
        self._check_length(len(tokens), ask.max_tokens)
        session = Session(
            session_id=self.session_id,
            num_prompt_tokens=len(tokens),
            max_tokens=ask.max_tokens,
            sampling=ask.sampling,
            verification=settings.verification,
            stop_token_ids=self._engine.stop_token_ids,
            num_roots=settings.num_roots,
        )
        return Request(session, tokens, settings, ask.stop)

    def _encode(self, prompt: Prompt, ask: Ask) -> tuple[int, ...]:
        tokenizer = self._engine.tokenizer
        if not self._tokens:
            return encode_prompt(tokenizer, prompt, raw=ask.raw)
        return encode_turn(tokenizer, prompt, last_token=self._tokens[-1], raw=ask.raw)

    def _check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        limit = self._engine.model.context_length
        if num_prompt_tokens + max_tokens > limit:
            raise PromptTooLong(
                f"a prompt of {num_prompt_tokens} tokens and up to {max_tokens} new ones exceed"
                f" the context of {limit} tokens"
            )

    def _settings(self, options: SpeculationOptions) -> Settings:
        drafter = self._drafter
        if drafter.kind == "none":
            if options != SpeculationOptions() and options.mode is not Mode.OFF:
                raise InvalidRequest("the engine has no draft, so nothing can be asked of one")
            options = SpeculationOptions(mode=Mode.OFF)
        kind = "ngram" if drafter.kind == "none" else drafter.kind
        _check_lag(options, drafter)
        return resolve(
            options,
            drafter.profile,
            drafter=kind,
            has_decision_model=drafter.has_decision_model,
        )


def _check_lag(options: SpeculationOptions, drafter: Drafter) -> None:
    asked = max(options.max_draft_tokens or 0, len(options.widths or ()))
    if drafter.max_lag is not None and asked > drafter.max_lag:
        raise InvalidRequest(
            f"{asked} draft tokens are asked for, but the draft was trained for paths of at most"
            f" {drafter.max_lag}"
        )
