"""A draft service put together: a drafter by name, its feeds, and what serves them."""

import logging
from dataclasses import replace
from pathlib import Path

from slipstream.core.draft.ngram_draft import NGRAM
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.request import NO_DRAFTER
from slipstream.draft.build import VANILLA, Drafter, DraftTarget, build_drafter
from slipstream.draft.config import DraftConfig
from slipstream.draft.describe import ForTarget, describe
from slipstream.draft.engine import LocalDraft
from slipstream.draft.feeds import KvFeeds
from slipstream.draft.servicer import DraftServicer
from slipstream.engine.thread import EngineThread
from slipstream.models.cores import Cores, load_on
from slipstream.models.glide.target_parts import load_parts
from slipstream.models.loading import parse_device
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.protocol import new_incarnation
from slipstream.telemetry.telemetry import Telemetry

_LOG = logging.getLogger("slipstream.draft")


def load_draft(config: DraftConfig, telemetry: Telemetry | None = None) -> DraftServicer:
    """Load what the configuration names, on the event loop that will serve it.

    `telemetry` records nothing by default. Raises what loading raises, and
    `InvalidRequest` for a draft that is none.
    """
    if config.draft == NO_DRAFTER:
        raise InvalidRequest("a draft service needs a draft; without one, start none")
    thread = EngineThread("draft")
    feeds = KvFeeds(config.to_targets(), parse_device(config.compute.device), config.sources())
    cores = Cores(config.compute.threads, config.compute.pin_threads)
    drafter, target = load_on(thread.call, lambda: _build(config, feeds), cores)
    if drafter.memory is not None and isinstance(drafter.draft, LocalDraft):
        _LOG.info("memory: %s", drafter.memory)
        if drafter.layers:
            feeds.budget.limit = drafter.memory.kv_bytes - drafter.draft.pool.num_bytes
    about = describe(
        drafter,
        _name(config.draft),
        target=target,
        incarnation=new_incarnation(),
        max_sessions=config.sessions.max_sessions,
    )
    return DraftServicer(
        drafter, feeds, about, config.settings(), thread=thread, telemetry=telemetry
    )


def _build(config: DraftConfig, feeds: KvFeeds) -> tuple[Drafter, ForTarget | None]:
    dtype, device = config.compute.dtype, config.compute.device
    stores = NgramStores(config.ngrams) if config.draft == NGRAM.kind else None
    if config.draft == NGRAM.kind or config.draft.startswith(VANILLA):
        alone = DraftTarget("", None, None, feeds, dtype, device, memory=config.memory())
        drafter = build_drafter(config.draft, alone, profile=config.profile)
        return replace(drafter, stores=stores), None
    loaded = load_parts(config.target_model, dtype=dtype, device=device)
    target = DraftTarget(
        loaded.model_id,
        loaded.tokenizer_hash,
        loaded.parts,
        feeds,
        dtype,
        device,
        loaded.context_length,
        config.memory(is_mirroring=True),
    )
    drafter = build_drafter(config.draft, target, profile=config.profile)
    # Without keys to read, any target will do that numbers its tokens alike.
    return drafter, ForTarget(loaded.model_id, loaded.parts) if drafter.layers else None


def _name(draft: str) -> str:
    """Return a directory's own name: where it lies is not made public."""
    path = Path(draft).expanduser()
    return path.resolve().name if path.is_dir() else draft
