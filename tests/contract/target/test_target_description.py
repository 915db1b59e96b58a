"""What a target says of itself: all that routers and drafts need, and what it takes."""

from slipstream.models.loading import load_target_parts
from slipstream.rpc.kv import DTYPE, KvDtype
from slipstream.rpc.v1 import target_pb2
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.build import build_target
from slipstream_target.description import describe
from support.models.tiny_checkpoint import save_checkpoint
from support.services.served_target import IDENTITY


async def test_the_tokenizer_is_described_only_to_those_who_ask(served):
    brief = await served.stub.DescribeTarget(target_pb2.DescribeTargetRequest())
    asked = target_pb2.DescribeTargetRequest(with_tokenizer=True)
    whole = await served.stub.DescribeTarget(asked)
    assert brief.identity == whole.identity == IDENTITY
    assert not brief.HasField("tokenizer")
    assert whole.tokenizer.json == b"{}"


def test_a_description_holds_all_that_a_router_and_a_draft_need(tmp_path):
    loaded = load_target_parts(str(save_checkpoint(tmp_path / "tiny")), dtype="float16")
    weight_bytes = sum(weight.nbytes for weight in loaded.model.parameters())
    built = build_target(loaded)
    about = describe(loaded, built, max_sessions=7)
    assert (about.identity.model_id, about.identity.vocab_size) == ("tiny", 259)
    other = describe(loaded, built, max_sessions=7)
    assert about.identity.incarnation != other.identity.incarnation
    assert (about.context_length, list(about.stop_token_ids), about.max_sessions) == (128, [0], 7)
    memory = about.memory
    assert memory.weight_bytes == weight_bytes
    assert memory.kv_bytes == built.memory.kv_bytes
    assert memory.workspace_bytes == built.memory.workspace_bytes
    assert memory.kv_bytes > 0 < memory.workspace_bytes
    layout = about.layout
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (2, 2, 8)
    assert DTYPE.from_pb(layout.dtype) is KvDtype.FLOAT16
    assert (about.numerics, about.dtype) == ("invariant", "float16")
    parts = about.tokenizer
    text = TextTokenizer.from_parts(parts.json, parts.chat_template, dict(parts.special_tokens))
    assert text.vocab_hash == about.identity.tokenizer_hash == loaded.tokenizer_hash
    assert text.chat_template == loaded.tokenizer.chat_template
