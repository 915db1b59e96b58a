"""Descriptions of replicas, asked for once per connection, and checked."""

import asyncio
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import grpc.aio
from google.protobuf.message import Message

from slipstream.core.errors import HandshakeError, SlipstreamError
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import ModelFacts
from slipstream.core.request.server_info import ReplicaRole
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, call_unary
from slipstream.rpc.conversion.convert import (
    check_identity,
    draft_facts_from_pb,
    model_facts_from_pb,
)
from slipstream.rpc.exchange import MAX_ANSWER_BYTES
from slipstream.rpc.remote_draft import draft_expectations
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream_router.encoder import ModelText, open_text

DESCRIBE_LIMIT_S = 30.0
R = TypeVar("R", bound=Message)
D = TypeVar("D", bound="DescribedTarget | DescribedDraft")
Description = target_pb2.DescribeTargetResponse | draft_pb2.DescribeDraftResponse


@dataclass(frozen=True, slots=True)
class DescribedTarget:
    """A target as it answered, with the text of its model by the tokenizer that it gave out."""

    description: target_pb2.DescribeTargetResponse
    facts: ModelFacts
    text: ModelText

    @property
    def name(self) -> str:
        """The model."""
        return self.facts.model_id

    @property
    def weights_digest(self) -> str:
        return self.description.identity.weights_digest

    @property
    def reported(self) -> dict[str, Any]:
        """Return what a router reports of it."""
        about = {"engine": self.description.engine, "weights_digest": self.weights_digest}
        return {"model": self.name, **_process(self.description), **about}

    @property
    def arithmetic(self) -> str:
        """Equal where the same text gives the same tokens: weights, element type, numerics, and
        what computes."""
        about = self.description
        return f"{self.weights_digest[:16]} {about.dtype} {about.numerics} {about.engine}"

    @property
    def tokenizer_hash(self) -> str:
        """Equal where token ids mean the same."""
        return self.description.identity.tokenizer_hash


@dataclass(frozen=True, slots=True)
class DescribedDraft:
    """A draft as it answered."""

    description: draft_pb2.DescribeDraftResponse
    facts: DraftFacts

    @property
    def name(self) -> str:
        """The kind of drafter."""
        return self.facts.kind

    @property
    def reported(self) -> dict[str, Any]:
        """Return what a router reports of it; what it computes changes no token."""
        return {"model": self.name, **_process(self.description)}


def _process(about: Description) -> dict[str, str]:
    return {"incarnation": about.identity.incarnation, "dtype": about.dtype}


class Probe(Generic[D]):
    """Calls that describe the replicas of a role."""

    role: ReplicaRole
    service: str
    """Full name of the service that the replicas have."""

    async def describe(self, channel: grpc.aio.Channel) -> D:
        """Return the replica's description. Raises `HandshakeError` for one that can't be used."""
        raise NotImplementedError

    async def _described(
        self,
        channel: grpc.aio.Channel,
        name: str,
        request: Message,
        kind: type[R],
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> R:
        method, limit_s = f"/{self.service}/{name}", DESCRIBE_LIMIT_S
        try:
            return await call_unary(
                channel, method, request, kind, timeout_s=limit_s, max_bytes=max_bytes
            )
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from None

    loads: tuple[str, type[Message], type[Any]]
    """Method that returns its load, its request and its answer."""

    async def load(self, channel: grpc.aio.Channel) -> common_pb2.Load:
        """Return what the replica holds at the moment. Raises `grpc.aio.AioRpcError`."""
        name, request, kind = self.loads
        answer = await call_unary(channel, f"/{self.service}/{name}", request(), kind)
        load: common_pb2.Load = answer.load
        return load


class TargetProbe(Probe[DescribedTarget]):
    """Probe of targets; loads the tokenizer of each model once. `aclose` it."""

    role = ReplicaRole.TARGET
    service = "slipstream.rpc.v1.TargetService"
    loads = "GetTargetLoad", target_pb2.GetTargetLoadRequest, target_pb2.GetTargetLoadResponse

    def __init__(self) -> None:
        # Models may number their tokens alike and yet differ in their chat templates.
        # Kept while a target has it: one that names itself anew each time must not fill the memory.
        self._texts = WeakValueDictionary[tuple[str, str], ModelText]()
        self._opening = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def describe(self, channel: grpc.aio.Channel) -> DescribedTarget:
        """See `Probe.describe`; a tokenizer with another hash than described can't be used."""
        answer = await self._answer(channel)
        check_identity(answer.identity)
        facts = model_facts_from_pb(answer)
        key = (facts.model_id, answer.identity.tokenizer_hash)
        text = self._texts.get(key)
        if text is None:
            files = (await self._answer(channel, with_tokenizer=True)).tokenizer
            opening = self._opening.setdefault(key, asyncio.Lock())
            async with opening:
                text = self._texts.get(key)
                if text is None:
                    text = self._texts[key] = await _opened(files, key[1])
        return DescribedTarget(answer, facts, text)

    async def _answer(
        self, channel: grpc.aio.Channel, *, with_tokenizer: bool = False
    ) -> target_pb2.DescribeTargetResponse:
        request = target_pb2.DescribeTargetRequest(with_tokenizer=with_tokenizer)
        max_bytes = MAX_MESSAGE_BYTES if with_tokenizer else MAX_ANSWER_BYTES
        kind = target_pb2.DescribeTargetResponse
        return await self._described(channel, "DescribeTarget", request, kind, max_bytes=max_bytes)

    async def aclose(self) -> None:
        for text in [*self._texts.values()]:
            await text.aclose()


class DraftProbe(Probe[DescribedDraft]):
    """Probe of drafts."""

    role = ReplicaRole.DRAFT
    service = "slipstream.rpc.v1.DraftService"
    loads = "GetDraftLoad", draft_pb2.GetDraftLoadRequest, draft_pb2.GetDraftLoadResponse

    async def describe(self, channel: grpc.aio.Channel) -> DescribedDraft:
        request, kind = draft_pb2.DescribeDraftRequest(), draft_pb2.DescribeDraftResponse
        answer = await self._described(channel, "DescribeDraft", request, kind)
        check_identity(answer.identity)
        return DescribedDraft(answer, draft_facts_from_pb(answer))


def fits(target: DescribedTarget, draft: DescribedDraft) -> bool:
    """Return whether a draft can guess for a target, as far as it depends on one."""
    ours, theirs = target.description, draft.description
    count = ours.layout.num_layers
    states = {layer - count for layer in theirs.target_layers if layer >= count}
    expected = draft_expectations(theirs, ours.identity, ours.layout)
    is_kept = states <= {*ours.layout.hidden_layers}
    return is_kept and all(needed == given for _, needed, given in expected)


async def _opened(files: target_pb2.Tokenizer, expected: str) -> ModelText:
    try:
        text, vocab_hash = await open_text(
            files.json, files.chat_template, dict(files.special_tokens)
        )
    except SlipstreamError as error:
        raise HandshakeError(f"its tokenizer can't be used: {error}") from None
    if vocab_hash != expected:
        await text.aclose()
        raise HandshakeError(
            f"its tokenizer has the hash {vocab_hash[:12]}, but it says {expected[:12]}"
        )
    return text
