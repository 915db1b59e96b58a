"""Writes slipstream/data/forwards.json: the digest of native code's forward of each known model.

`make forwards` runs it, when the forward is meant to give other bits or a model is added. Each is
compared with transformers' own forward first; the file says by how much they differ.
"""

from slipstream.core.errors import ModelError
from slipstream.files import write_json
from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import AUTO, Q8
from slipstream.models.format.wheel import CATALOG
from slipstream.models.loading import load_model, sizes_of
from slipstream.models.machine import TRANSFORMERS, release
from slipstream.models.native.model import NativeDecoder
from slipstream.models.reference import (
    FORWARDS,
    differences,
    forward_digest,
    record_key,
    sample_tokens,
)
from slipstream.models.torch.transformers_model import computed_states

DTYPES = (AUTO, "bfloat16", "float32", Q8)


def entry(name: str, dtype: str) -> tuple[str, dict[str, object]]:
    """The name in the file and the contents of a model's forward. Raises `ModelError` for one that
    differs too much from transformers'."""
    source = load_model(name, dtype=dtype).model
    sizes = sizes_of(source)
    found = CausalModel(NativeDecoder(source, sizes.layout), sizes).sample()
    expected = computed_states(source.reference(), sample_tokens(sizes.vocab_size))
    shares = differences(found, expected, sizes.weights_type)
    if odd := [what for what, share, limit in shares if not share < limit]:
        raise ModelError(f"{odd[0]} of {name} in {dtype} differ from transformers' own")
    about = {what: round(share, 5) for what, share, _ in shares}
    return record_key(source), {
        "model": name,
        "weights_type": sizes.weights_type,
        "forward_sha256": forward_digest(found),
        "differences": {**about, "from": f"{TRANSFORMERS} {release(TRANSFORMERS)}"},
    }


def main() -> None:
    pairs = [(name, dtype) for name in CATALOG for dtype in DTYPES]
    # Blocks of a GGUF file are computed as they are, and never rounded to q8.
    pairs.remove(("smollm2-135m-q4_1", Q8))
    write_json(FORWARDS, dict(entry(*pair) for pair in pairs))


if __name__ == "__main__":
    main()
