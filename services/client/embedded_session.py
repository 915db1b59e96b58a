"""A session on engines in this process: turn after turn, each appended to what was said before."""

import time
import weakref
from collections.abc import Callable, Iterator

from slipstream.client.engine import Engine
from slipstream.client.stream import ChunkStream
from slipstream.client.surface import Call, late
from slipstream.core.errors import SessionBusy
from slipstream.core.inline import finished, iterated
from slipstream.core.lookup_draft import LookupDraft
from slipstream.core.request import Generation, Request, draft_settings, make_request
from slipstream.core.results import Chunk
from slipstream.core.run import Run
from slipstream.core.timing import Clock
from slipstream.draft.build import Drafter
from slipstream.text.prompts import encode_prompt, encode_turn


class EmbeddedSession:
    """Keeps its tokens here and its caches in the engines, from turn to turn."""

    def __init__(
        self, engine: Engine, drafter: Drafter, session_id: str, *, clock: Clock = time.perf_counter
    ) -> None:
        self.session_id = session_id
        self._engine = engine
        self._facts = drafter.facts
        self._draft = LookupDraft(drafter.draft)
        self._clock = clock
        self._tokens: tuple[int, ...] = ()
        self._is_busy = False
        # Weak, so that a stream that nobody reads any more ends.
        self._turn: Callable[[], ChunkStream | None] = lambda: None

    def turn(self, call: Call, *, is_last: bool = False) -> ChunkStream:
        """Run one request. Bad input raises here, before the first chunk is asked for.

        The caches are freed with the end of the last turn.
        """
        if self._is_busy:
            raise SessionBusy(f"session {self.session_id} is busy with another request")
        request = self._request(call.generation)
        run = Run(
            self._draft,
            self._engine.target,
            request,
            detokenise=self._engine.text.decode,
            clock=self._clock,
        )
        chunks = iterated(run.chunks())

        def end() -> None:
            chunks.close()
            self._is_busy = False
            if run.output:  # a turn that was never answered was never said
                self._tokens = (*request.tokens, *run.output)
            if is_last:
                self.release()

        self._is_busy = True
        stream = ChunkStream(self._timely(chunks, call), end, request_id=call.request_id)
        self._turn = weakref.ref(stream)
        return stream

    def release(self) -> None:
        """End the turn that runs, if any, and free what the engines hold."""
        if (stream := self._turn()) is not None:
            stream.close()
        finished(self._draft.release(self.session_id))
        finished(self._engine.target.release(self.session_id))

    def _timely(self, chunks: Iterator[Chunk], call: Call) -> Iterator[Chunk]:
        if call.timeout_s is None:
            return chunks
        return self._until(self._clock() + call.timeout_s, chunks, call.timeout_s)

    def _until(self, deadline: float, chunks: Iterator[Chunk], timeout_s: float) -> Iterator[Chunk]:
        for chunk in chunks:
            if self._clock() > deadline:
                raise late(timeout_s)
            yield chunk

    def _request(self, asked: Generation) -> Request:
        engine, facts, ask = self._engine, self._facts, asked.ask
        draft_settings(ask.speculation, facts)  # refused before anything is encoded
        new = self._encode(asked)
        return make_request(self.session_id, (*self._tokens, *new), ask, engine.facts, facts)

    def _encode(self, asked: Generation) -> tuple[int, ...]:
        text, raw = self._engine.text, asked.ask.raw
        if not self._tokens:
            return encode_prompt(text, asked.prompt, raw=raw)
        return encode_turn(text, asked.prompt, last_token=self._tokens[-1], raw=raw)
