"""Leases of sessions that requests acquire before they run, also while the store does not answer;
how a turn becomes a request, and how one that has ended is answered again.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count

from slipstream.core.errors import (
    InvalidRequest,
    SessionOutOfSync,
    Unavailable,
    UnsupportedCombination,
    check,
)
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import (
    Generation,
    ModelFacts,
    Request,
    draft_settings,
    make_request,
)
from slipstream.core.request.results import Chunk, Ending, PromptInfo
from slipstream.core.text import Piece, TextStream, joined
from slipstream.core.types import Verification
from slipstream.options import check_bounds, option
from slipstream.state.journal import StoreJournal
from slipstream.state.store import Claim, Record, SessionStore, StoredTurn

_SINGLE_REQUEST = re.compile(r"r-[0-9a-f]{48}")
_ALLOW = "allow"
Encode = Callable[[int | None], Awaitable[Sequence[int]]]
"""Return the token ids of the turn's prompt behind the session's last token, None at its start."""


@dataclass(frozen=True, slots=True)
class KeepRules:
    """Times that sessions and single requests are kept, and whether requests run while the
    store does not answer."""

    session_ttl_s: float = option(3600.0, "How long a session is kept without a turn.", above=0)
    request_ttl_s: float = option(
        600.0, "How long the answer to a request without a session is kept.", above=0
    )
    store_down: str = option(
        _ALLOW, "New requests while the store does not answer: allow, or refuse."
    )
    ends_with_process: bool = False
    """True for a store in memory: a request on its own is kept there when it has ended."""

    def __post_init__(self) -> None:
        check_bounds(self)
        is_right = self.store_down in (_ALLOW, "refuse")
        check(is_right, "store_down", self.store_down, f"{_ALLOW} or refuse")


AcquiredSession = tuple[Record, StoreJournal | None]
"""The session of a request that may run; without a journal the request has ended already."""


@dataclass(eq=False)
class SessionLeases:
    """Acquires sessions in a store.

    `next_fence` stands in for the store's fences while it does not answer.
    """

    store: SessionStore
    rules: KeepRules
    next_fence: Callable[[], int]
    _process: str = field(default_factory=partial(secrets.token_hex, 8))
    _attempts: Iterator[int] = field(default_factory=count)

    async def acquire(self, generation: Generation, owner: str, model: str) -> AcquiredSession:
        """Acquire the session of a request with an id; an empty `model` is that of its session.

        Raises what `SessionStore.acquire` does; `Unavailable` when the store does not answer, and
        the request can't do without or may not.
        """
        claim = self._claim(generation, owner, model)
        try:
            grant = await self.store.acquire(claim)
        except Unavailable as error:
            if not claim.create:
                raise Unavailable(
                    f"session {claim.session_id} can't be looked up: {error}"
                ) from None
            if self.rules.store_down != _ALLOW:
                raise
            request = StoredTurn(claim.request_id, claim.digest)
            fence = self.next_fence()
            record = Record(claim.session_id, claim.owner, claim.model, fence, request)
            return record, StoreJournal(self.store, claim, None)
        at_end = self.rules.ends_with_process and claim.is_alone
        journal = StoreJournal(self.store, claim, grant, at_end=at_end) if grant.lease else None
        return grant.record, journal

    def _claim(self, generation: Generation, owner: str, model: str) -> Claim:
        session, rules = generation.session, self.rules
        return Claim(
            session_id=session_of(generation, owner),
            request_id=generation.ask.request_id,
            digest=fingerprint(generation),
            owner=owner,
            holder=f"{self._process}-{next(self._attempts):012d}",
            model=model,
            create=session is None or session.create,
            ttl_s=rules.session_ttl_s if session else rules.request_ttl_s,
            is_alone=session is None,
            after=session.after if session else "",
        )


def session_of(generation: Generation, owner: str) -> str:
    """Return the id of a request's session: without one, an id that no caller can name.

    Raises `InvalidRequest` for a session that is named like one of those.
    """
    if generation.session is not None:
        session_id = generation.session.session_id
        if _SINGLE_REQUEST.fullmatch(session_id):
            raise InvalidRequest(
                f"the session id is {session_id}, but ids of this form are for requests without one"
            )
        return session_id
    name = f"{owner}/{generation.ask.request_id}"
    return f"r-{hashlib.sha256(name.encode()).hexdigest()[:48]}"


def owner_digest(owner: str) -> str:
    """Return what stands for an API key at engines; empty for no key."""
    return owner and hashlib.sha256(owner.encode()).hexdigest()[:32]


def request_name(generation: Generation, owner: str) -> str:
    """Return the name of a request among all of its owner: session, id and digest of the rest.

    Only the same request, sent again, has the same name.
    """
    return f"{session_of(generation, owner)}/{generation.ask.request_id}/{fingerprint(generation)}"


def check_received(generation: Generation, record: Record, *, is_repeatable: bool) -> None:
    """Raise `SessionOutOfSync` when the caller holds tokens that are not kept and that a target
    may not give again. `is_repeatable`: whether its numerics are the same every time."""
    num_kept = len(record.output)
    if generation.num_received <= num_kept:
        return
    verification = generation.ask.speculation.verification or Verification.EXACT
    if verification is not Verification.EXACT or not is_repeatable:
        why = f"verification {verification.value}" if is_repeatable else "these numerics"
        raise SessionOutOfSync(
            f"the caller holds {generation.num_received} tokens, but {num_kept} were kept, and"
            f" {why} may not give the same ones again"
        )


async def turn_request(
    generation: Generation, record: Record, model: ModelFacts, draft: DraftFacts, encode: Encode
) -> Request:
    """Return the checked request of a turn; its prompt is encoded unless the record has its tokens.

    Raises `InvalidRequest` for options that do not go together, before anything is encoded.
    """
    ask = generation.ask
    draft_settings(ask.speculation, draft)
    tokens = record.tokens[: record.turn.num_prompt_tokens]
    if not tokens:
        before = record.tokens
        if before and ask.prompt_logprobs:
            raise UnsupportedCombination("prompt_logprobs go with a session's first turn only")
        tokens = (*before, *await encode(before[-1] if before else None))
    request = make_request(record.session_id, tokens, ask, model, draft)
    return replace(request, past=record.output, num_received=generation.num_received)


def replayed(
    generation: Generation,
    record: Record,
    model: ModelFacts,
    detokenise: Callable[[Sequence[int]], str],
) -> Chunk:
    """Return all that the caller does not hold of a kept answer, in one chunk.

    Raises `InvalidRequest` when the caller holds more than there is.
    """
    output, request = record.output, record.turn
    if generation.num_received > len(output):
        raise InvalidRequest(
            f"num_received is {generation.num_received}, but the answer has {len(output)} tokens"
        )
    assert request.ending is not None
    ending = Ending.from_json(request.ending).answered_again()
    seed = generation.ask.sampling.seed
    length, tool_format = request.num_prompt_tokens, model.tool_format
    info = PromptInfo(request.request_id, record.model, seed, length, tool_format)
    piece = _rest(generation, record, detokenise)
    # What is kept are tokens, not the rounds that they came from.
    unknown = (None,) * len(piece.tokens)
    origins = unknown if generation.ask.with_origins else ()
    logprobs = unknown if generation.ask.num_logprobs is not None else ()
    return Chunk(piece.text, piece.tokens, ending.reason, ending.stats, info, origins, logprobs)


def _rest(
    generation: Generation, record: Record, detokenise: Callable[[Sequence[int]], str]
) -> Piece:
    ask, num_sent = generation.ask, generation.num_received
    if num_sent == len(record.output):
        return Piece("", ())
    before = record.tokens[: record.turn.num_prompt_tokens] if ask.form.goes_on else ()
    stream = TextStream(detokenise, ask.stop, num_sent=num_sent, before=before)
    piece = stream.push(record.output)
    return piece if piece.is_stopped else joined((piece, stream.finish()))


def fingerprint(asked: Generation) -> str:
    """Return the SHA-256 in hexadecimal of all of a request that decides its answer.

    Its id, what its caller holds, whether its session is to begin, and what is returned beside
    tokens decide nothing. Every router of a version returns the same.
    """
    session = asked.session and replace(asked.session, create=False)
    nameless = replace(
        asked,
        prompt="",
        ask=replace(
            asked.ask,
            request_id="",
            with_origins=False,
            with_rounds=False,
            prompt_logprobs=False,
            num_logprobs=None,
        ),
        session=session,
        num_received=0,
    )
    digest = hashlib.sha256(json.dumps(asdict(nameless), sort_keys=True).encode())
    # Apart, as `asdict` would copy every part of it.
    digest.update(json.dumps(asked.prompt, sort_keys=True, default=dict).encode())
    return digest.hexdigest()
