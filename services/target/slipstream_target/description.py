"""Description of a target on the wire."""

import logging

from slipstream.models.kv.pool import KvLayout
from slipstream.models.loading import LoadedModel
from slipstream.models.store.digests import hub_commit, weights_digest
from slipstream.models.tokenizer import text_tokenizer
from slipstream.rpc.conversion.convert_common import TOOL_FORMAT
from slipstream.rpc.kv import DTYPE
from slipstream.rpc.protocol import PROTOCOL_VERSION, new_incarnation
from slipstream.rpc.tensors import dtype_of
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.verifying.build import BuiltTarget

_LOG = logging.getLogger("slipstream.target")


def describe(
    loaded: LoadedModel, built: BuiltTarget, *, max_sessions: int
) -> target_pb2.DescribeTargetResponse:
    """Return all but the address, which is known once the target listens. A new incarnation each
    time.

    Raises `ModelMismatch` for a tokenizer, `InvalidRequest` for an element type, that can't
    leave this process.
    """
    facts, model = built.facts, built.model
    digest, commit = weights_digest(loaded.path), hub_commit(loaded.path)
    _LOG.info("%s has the weights %s%s", facts.model_id, digest, commit and f" of commit {commit}")
    return target_pb2.DescribeTargetResponse(
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id=facts.model_id,
            tokenizer_hash=loaded.tokenizer_hash,
            vocab_size=facts.vocab_size,
            incarnation=new_incarnation(),
            weights_digest=digest,
            revision=commit,
        ),
        layout=layout_to_pb(model.layout),
        context_length=facts.context_length,
        stop_token_ids=sorted(facts.stop_token_ids),
        numerics=model.numerics,
        engine="native" if model.is_native else "torch",
        dtype=model.weights_type,
        max_sessions=max_sessions,
        tokenizer=_tokenizer(loaded),
        memory=common_pb2.Memory(**built.memory.account()),
        has_grammars=facts.has_grammars,
        max_logprobs=facts.max_logprobs,
        tool_format=TOOL_FORMAT.to_pb(facts.tool_format),  # type: ignore[arg-type]
    )


def layout_to_pb(layout: KvLayout) -> common_pb2.KvLayout:
    """Return the shape of a model's keys and values."""
    return common_pb2.KvLayout(
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        dtype=DTYPE.to_pb(dtype_of(layout.dtype)),  # type: ignore[arg-type]
    )


def _tokenizer(loaded: LoadedModel) -> target_pb2.Tokenizer:
    parts = text_tokenizer(loaded.tokenizer).parts()
    return target_pb2.Tokenizer(
        json=parts.json, chat_template=parts.chat_template, special_tokens=parts.special_tokens
    )
