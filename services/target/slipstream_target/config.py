"""Configuration of a target. Values only; `slipstream.config` reads them."""

import re
from dataclasses import dataclass

from slipstream.core.errors import check
from slipstream.core.policy.options import EAGLE
from slipstream.core.tree import MAX_NODES
from slipstream.models.decoder import check_numerics
from slipstream.models.eagle.eagle_weights import head_layers
from slipstream.models.glide.glide_config import default_layers
from slipstream.models.memory import ComputeOptions
from slipstream.models.threads import num_threads
from slipstream.options import check_bounds, group, option
from slipstream.rpc.protocol import check_advertised
from slipstream.rpc.server import ListenOptions, ServerOptions
from slipstream.rpc.service_options import (
    DEFAULT_ADDRESSES,
    ReplicaOptions,
    SessionOptions,
    TlsOptions,
)
from slipstream.state.options import StoreOptions
from slipstream.text.tool_prompt import AUTO_FORMAT, TOOL_FORMATS
from slipstream.verifying.build import MAX_ROWS, TargetLimits

NO_LAYERS, AUTO_LAYERS = "none", "auto"
_LAYERS = re.compile(r"none|auto|eagle3:.+|\d{1,5}(,\d{1,5})*")
_LEAST_ROWS = MAX_NODES + 1
"""Batched tokens of a step: the largest proposal, and the token above it."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Options of a target."""

    listen: ListenOptions = group(
        ListenOptions, address=option(DEFAULT_ADDRESSES["target"], "Address to listen on.")
    )
    replica: ReplicaOptions = group(ReplicaOptions)
    model: str = option(
        "smollm2-135m-q4_1", "An alias, a path or OWNER/NAME of the hub, which @REVISION pins."
    )
    compute: ComputeOptions = group(ComputeOptions)
    numerics: str = option(
        "auto",
        "invariant: a token depends on its prefix only, whatever is computed beside it; fast; auto:"
        " invariant, but fast where torch computes on a CPU.",
    )
    tool_format: str = option(
        AUTO_FORMAT,
        "How the model calls tools: hermes, llama3, mistral or none; auto: by its chat template.",
    )
    sampling_defaults: str = option(
        "model",
        "Sampling of requests over HTTP that leave it out: model, as its generation_config.json has"
        " it; none, as OpenAI has it.",
    )
    tensor_parallel: int = option(
        1,
        "Processes that share the model, each with a part of every layer and a GPU of its own.",
        above=0,
    )
    hidden_layers: str = option(
        NO_LAYERS,
        "Layers whose inputs are kept for EAGLE-3 drafts: none; those of a head, eagle3:HEAD;"
        " numbers from 0, such as 2,15,27; auto: layer 2, the middle one and the third last.",
    )
    sessions: SessionOptions = group(
        SessionOptions,
        max_parked_bytes=option(
            1 << 30,
            "Bytes kept for next turns and prompts that begin alike, until they are needed.",
        ),
    )
    max_waiting: int = option(64, "Requests that may wait for memory; more are refused.", least=0)
    max_rows_per_step: int | None = option(
        None, "Tokens of all sessions that one step computes; unset, 256.", least=_LEAST_ROWS
    )
    max_prompt_delay_ms: float = option(
        50.0,
        "Longest time that reading prompts may add to a step of running sessions, as measured.",
        least=0,
    )
    tls: TlsOptions = group(TlsOptions, "tls_")
    tls_draft_names: tuple[str, ...] = option(
        (), "Names of drafts, which may read keys and values, and do nothing else."
    )
    store: StoreOptions = group(
        StoreOptions, "store_", timeout_s=option(1.0, "Longest time for the store to answer.")
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_numerics(self.numerics)
        is_known = bool(_LAYERS.fullmatch(self.hidden_layers))
        forms = "none, auto, eagle3:HEAD or numbers such as 2,15,27"
        check(is_known, "hidden_layers", self.hidden_layers, forms)
        choices = {"tool_format": TOOL_FORMATS, "sampling_defaults": ("model", "none")}
        for name, known in choices.items():
            value = getattr(self, name)
            check(value in known, name, value, f"one of {', '.join(known)}")
        self.server_options()
        advertised = self.replica.advertised_address
        check_advertised(self.listen.address, advertised, reader="draft")

    def rank_threads(self) -> int | None:
        """Return the threads of each rank; None is the choice for a process that is alone."""
        if self.compute.threads is not None or self.tensor_parallel == 1:
            return self.compute.threads
        return max(1, num_threads() // self.tensor_parallel)

    def server_options(self) -> ServerOptions:
        """Return where and how to serve."""
        return self.replica.server_options(
            self.listen, self.tls, self.sessions.max_sessions, StreamKv=self.tls_draft_names
        )

    def target_limits(self, num_layers: int) -> TargetLimits:
        """Return what the engine of a model of so many layers holds and computes at once."""
        sessions, max_rows = self.sessions, self.max_rows_per_step or MAX_ROWS
        return TargetLimits(
            sessions.max_sessions,
            self.compute.kv_memory,
            sessions.max_parked_bytes,
            max_rows,
            max_prompt_delay_s=self.max_prompt_delay_ms / 1000,
            hidden_layers=layers_of(self.hidden_layers, num_layers),
        )


def layers_of(text: str, num_layers: int) -> tuple[int, ...]:
    """Return the layers that the option names, of a model of so many. Raises as `head_layers`."""
    if text == AUTO_LAYERS:
        return default_layers(num_layers)
    if text == NO_LAYERS or text.startswith(EAGLE):
        return head_layers(text, num_layers)
    return tuple(map(int, text.split(",")))
