"""Requests: from what was asked to chunks of text, on the replicas that were chosen for it.

Knows sessions, text and placement; not the public API on the wire.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from slipstream.core.prompt import Prompt
from slipstream.core.request import (
    DraftFacts,
    Generation,
    Request,
    draft_settings,
    make_request,
)
from slipstream.core.results import Chunk
from slipstream.core.run import Run
from slipstream.router.admission import Admission
from slipstream.router.conversations import Conversation, Conversations
from slipstream.router.fleet import Fleet, Placed, Wanted
from slipstream.router.places import Pair, SeatTerms, free_parked
from slipstream.rpc.exchange import Terms
from slipstream.text.prompts import encode_prompt, encode_turn
from slipstream.text.tokenizer import TextTokenizer

LONG_PROMPT = 4096
"""Characters from which on a prompt is turned into tokens outside of the event loop."""

_FORGET_LIMIT_S = 2.0

Remaining = Callable[[], float | None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long rounds may take, and how long keys are kept between turns. See `RouterConfig`."""

    target_round_s: float = 30.0
    target_token_s: float = 0.02
    draft_round_s: float = 2.0
    draft_token_s: float = 0.005
    park_ttl_s: float = 300.0


class Turns:
    """Runs requests, and remembers the sessions among them."""

    def __init__(
        self,
        fleet: Fleet,
        conversations: Conversations,
        admission: Admission,
        *,
        patience: Patience,
        next_fence: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._conversations = conversations
        self._admission = admission
        self._patience = patience
        self._next_fence = next_fence

    async def chunks(self, asked: Generation, remaining: Remaining) -> AsyncGenerator[Chunk, None]:
        """Run a request. `remaining` is the caller's patience in seconds, None being endless."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._admission.place())
            conversation = self._conversation(asked, stack)
            placed = self._fleet.target(_wanted(conversation))
            stack.enter_context(placed.replica.used())
            conversation.tokenizer_hash = placed.model.tokenizer_hash
            request, facts = await self._request(asked, conversation, placed)
            pair = self._pair(placed, conversation, facts.kind, remaining)
            stack.push_async_callback(pair.release, conversation.session_id)
            run = Run(
                pair.draft,
                pair.target,
                request,
                detokenise=placed.model.tokenizer.decode,
                clock=time.perf_counter,
            )
            stack.callback(lambda: conversation.say(request.tokens, run.output))
            async for chunk in await stack.enter_async_context(aclosing(run.chunks())):
                yield chunk
            if asked.session is not None:
                where = await pair.park(self._patience.park_ttl_s)
                conversation.target, conversation.draft = where

    async def tokens(self, prompt: Prompt, model: str, *, raw: bool) -> tuple[int, ...]:
        """Token ids of a prompt, as a request with it would use them."""
        name = self._fleet.model_name(model)
        return await _encode(self._fleet.models()[name].model.tokenizer, prompt, raw=raw)

    async def forget(self, session_id: str) -> None:
        """Forget a session, and have its keys freed where they may be."""
        conversation = self._conversations.delete(session_id)
        placed = self._fleet.at(conversation.target)
        if placed is not None:
            terms = Terms(fence=conversation.fence, round_s=_FORGET_LIMIT_S)
            await free_parked(self._fleet, placed, conversation, terms)

    def _conversation(self, asked: Generation, stack: AsyncExitStack) -> Conversation:
        """The session, for one turn; a request on its own is a session that nobody remembers."""
        if asked.session is None:
            name = self._fleet.model_name(asked.model)
            return Conversation(secrets.token_hex(8), name, self._next_fence())
        known = self._conversations.model_of(asked.session)
        name = self._fleet.model_name(asked.model or known or "")
        return stack.enter_context(self._conversations.turn(asked.session, name))

    async def _request(
        self, asked: Generation, conversation: Conversation, placed: Placed
    ) -> tuple[Request, DraftFacts]:
        ask, before = asked.ask, conversation.tokens
        facts = self._fleet.draft_facts(placed, ask.speculation.drafter)
        draft_settings(ask.speculation, facts)  # refused before anything is encoded
        last_token = before[-1] if before else None
        new = await _encode(
            placed.model.tokenizer, asked.prompt, raw=ask.raw, last_token=last_token
        )
        named = replace(ask, request_id=ask.request_id or secrets.token_hex(8))
        tokens = (*before, *new)
        return (
            make_request(conversation.session_id, tokens, named, placed.model.facts, facts),
            facts,
        )

    def _pair(
        self, placed: Placed, conversation: Conversation, kind: str, remaining: Remaining
    ) -> Pair:
        patience, fence = self._patience, conversation.fence
        terms = SeatTerms(
            Terms(fence, patience.target_round_s, patience.target_token_s, remaining),
            Terms(fence, patience.draft_round_s, patience.draft_token_s, remaining),
            kind,
            conversation.draft,
        )
        return Pair(self._fleet, placed, terms)


async def _encode(
    tokenizer: TextTokenizer, prompt: Prompt, *, raw: bool, last_token: int | None = None
) -> tuple[int, ...]:
    """Token ids of a first turn, or of one behind `last_token`."""
    encode = (
        partial(encode_prompt, tokenizer, prompt, raw=raw)
        if last_token is None
        else partial(encode_turn, tokenizer, prompt, last_token=last_token, raw=raw)
    )
    if _num_chars(prompt) < LONG_PROMPT:
        return encode()
    return await asyncio.to_thread(encode)


def _num_chars(prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(item["content"]) if isinstance(item, Mapping) else 1 for item in prompt)


def _wanted(conversation: Conversation) -> Wanted:
    return Wanted(conversation.model, conversation.tokenizer_hash, conversation.target)
