"""A tiny target and tiny drafts for it, each served by its own real server on this machine."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio

from slipstream.core.draft.ngram_draft import NgramDraft
from slipstream.core.inline import finished
from slipstream.core.policy.profile import NGRAM, DraftFacts, Profile
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Session, Verdict
from slipstream.drafting.build import Drafter
from slipstream.drafting.engine import KvSource, LocalDraft, TargetKv
from slipstream.models.causal import CausalModel
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.dtypes import CPU
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.load import target_parts
from slipstream.models.glide.target_parts import LoadedParts
from slipstream.ngrams.store_file import NgramStores
from slipstream.options import build
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.remote_draft import RemoteDraft, TargetSide
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream.telemetry.metric import Telemetry
from slipstream.verifying.engine import LocalTarget
from slipstream_draft.__main__ import describe
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_receivers import KvReceivers
from slipstream_draft.kv_sources import KvSources
from slipstream_draft.servicer import SERVICE as DRAFT_SERVICE
from slipstream_draft.servicer import DraftServicer
from slipstream_draft.servicer import register as draft_register
from slipstream_target.__main__ import layout_to_pb
from support.models import tiny, tiny_eagle
from support.services.background import serving
from support.services.fleet import eventually
from support.services.served_target import Served, is_empty, served_target

MAX_LAG = 8
INCARNATION = "the-target-process"
PROFILE = Profile(threshold_sampled=0.35, step_cost=0.1)


@dataclass(frozen=True)
class Models:
    """The weights that all the tests of a module share; engines over them are made anew."""

    target: CausalModel = field(
        default_factory=lambda: tiny.causal(hidden_layers=tiny_eagle.LAYERS)
    )
    plain: CausalModel = field(default_factory=lambda: tiny.causal(numerics="fast"))
    glide: GlideScorer = field(default_factory=lambda: tiny.glide(max_lag=MAX_LAG))
    eagle3: GlideScorer = field(default_factory=lambda: tiny_eagle.head(max_lag=MAX_LAG))
    no_cross: GlideScorer = field(default_factory=lambda: tiny.glide(layers=(), max_lag=0))
    stores: NgramStores | None = None
    tokenizer_hash: str = "tiny"

    @property
    def identity(self) -> common_pb2.ModelIdentity:
        return common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id="tiny",
            tokenizer_hash=self.tokenizer_hash,
            vocab_size=tiny.VOCAB,
            incarnation=INCARNATION,
        )

    @property
    def layout(self) -> common_pb2.KvLayout:
        return layout_to_pb(self.target.layout)

    def drafter(self, kind: str, source: KvSource) -> Drafter:
        if kind == "ngram":
            return Drafter(NgramDraft(), NGRAM, stores=self.stores)
        length = self.target.context_length
        if kind == "vanilla":
            facts = DraftFacts("vanilla", PROFILE)
            draft = LocalDraft(CausalScorer(self.plain), profile=PROFILE)
            return Drafter(draft, facts, (), "tiny", tiny.VOCAB)
        if kind == "no-cross":
            facts = DraftFacts("glide", PROFILE)
            draft = LocalDraft(self.no_cross, profile=PROFILE)
            return Drafter(draft, facts, (), "tiny", tiny.VOCAB, length)
        scorer: GlideScorer = getattr(self, kind)
        facts = DraftFacts(kind, PROFILE, max_lag=MAX_LAG)
        draft = LocalDraft(scorer, TargetKv(source, scorer.layers), profile=PROFILE)
        return Drafter(draft, facts, scorer.layers, "tiny", tiny.VOCAB, length)


def target_here(models: Models, tokens: tuple[int, ...]) -> LocalTarget:
    """A target in this process, which holds the keys of all tokens but the last."""
    target = tiny.local_target(models.target, free_rows=16)
    before = TokenSequence(Session("s", len(tokens) - 1, 40), tokens[:-1])
    finished(target.verify(before, Proposal()))
    return target


@dataclass
class TargetPlace(Served):
    models: Models = field(kw_only=True)

    def remote(self) -> RemoteTarget:
        """The target, for one request."""
        return RemoteTarget(Peer("target", self.channel), self.models.identity, CallOptions())

    async def prefilled(self, session: Session, tokens: tuple[int, ...]) -> RemoteTarget:
        """A request whose target holds the keys of all tokens but the last."""
        remote = self.remote()
        shorter = replace(session, num_prompt_tokens=len(tokens) - 1)
        await remote.verify(TokenSequence(shorter, tokens[:-1]), Proposal())
        return remote


@asynccontextmanager
async def target_place(models: Models) -> AsyncIterator[TargetPlace]:
    async with served_target(models.target, identity=models.identity) as served:
        yield TargetPlace(**vars(served), models=models)


@dataclass
class DraftPlace:
    models: Models
    kind: str
    servicer: DraftServicer
    receivers: KvReceivers
    channel: grpc.aio.Channel

    def remote(
        self, feed: Callable[[], draft_pb2.KvFeed | None] = lambda: None, *, fence: int = 0
    ) -> RemoteDraft:
        """The draft, for one request."""
        side = TargetSide(self.models.identity, self.models.layout, feed)
        return RemoteDraft(Peer("draft", self.channel), side, CallOptions(fence=fence))

    async def load(self) -> common_pb2.Load:
        stub = draft_pb2_grpc.DraftServiceStub(self.channel)
        answer = await stub.GetDraftLoad(draft_pb2.GetDraftLoadRequest())
        return answer.load

    async def until_empty(self) -> None:
        """Wait until no session and no byte is left."""
        await eventually(self.load, is_empty)


@asynccontextmanager
async def draft_place(
    models: Models,
    kind: str,
    config: DraftConfig | None = None,
    *,
    telemetry: Telemetry | None = None,
    sources: KvSources | None = None,
) -> AsyncIterator[DraftPlace]:
    """A served draft. It waits long for keys, so that tests do not depend on how fast they are."""
    config = config or build(DraftConfig, kv_wait_ms=5000.0, window=0)
    receivers = KvReceivers(ChannelOptions(), CPU, sources)
    drafter = models.drafter(kind, receivers)
    parts = target_parts(tiny.hf_model())
    made_for = LoadedParts(parts, "tiny", models.target.context_length) if drafter.layers else None
    about = describe(drafter, kind, target=made_for, incarnation="a-draft", max_sessions=64)
    servicer = DraftServicer(drafter, receivers, about, config, telemetry=telemetry)
    async with (
        serving({DRAFT_SERVICE: draft_register(servicer)}) as address,
        connect(address, ChannelOptions()) as channel,
    ):
        yield DraftPlace(models, kind, servicer, receivers, channel)
    await servicer.close()
    assert receivers.num_reading == receivers.num_kv_bytes == 0


async def rounds(
    draft: RemoteDraft, target: RemoteTarget, session: Session, prompt: tuple[int, ...], plan: Plan
) -> AsyncIterator[tuple[tuple[int, ...], Proposal, Verdict]]:
    """Tokens before each round, what was proposed after them, and the verdict; without an end."""
    sequence = TokenSequence(session, prompt)
    verdict = await target.verify(sequence, Proposal())
    sequence.append(verdict.tokens)
    while verdict.finish_reason is None:
        before = tuple(sequence.tokens)
        proposal = await draft.propose(sequence, plan)
        verdict = await target.verify(sequence, proposal)
        yield before, proposal, verdict
        sequence.append(verdict.tokens)
