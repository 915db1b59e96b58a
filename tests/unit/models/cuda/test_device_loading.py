"""A GPU takes weights in parts, and rounds those of linear layers to 8 bits where that is asked."""

from pathlib import Path

import pytest
import torch

from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.models.loading import causal_model, load_model, sizes_of
from slipstream.models.torch.choice import load_kernels
from slipstream.models.torch.loading import load_target_parts
from support.cuda.gpu import simulated_gpu
from support.models import tiny, tiny_gguf
from support.models.tiny_checkpoint import change_config, save_checkpoint, save_model

WIDE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 128}
WIDE |= {"vocab_size": 264}


@pytest.mark.parametrize(
    ("kind", "dtype"), [("gguf", "bfloat16"), ("safetensors", "bfloat16"), ("safetensors", "fp8")]
)
def test_a_device_takes_weights_in_parts_and_the_host_never_has_most_of_them(kind, dtype, tmp_path):
    path, kept = tmp_path / "model.gguf", []
    if kind == "gguf":
        tiny_gguf.write(path, lambda _: "F16", hidden=2048)
    else:
        path, own = tmp_path, torch.bfloat16 if dtype == "fp8" else torch.float32
        save_model(path, tiny.hf_model(dtype=own, **WIDE), max_shard_size="8MB")
        assert len(list(path.glob("*.safetensors"))) > 5
    with simulated_gpu(has_values=False) as gpu:  # what was sent is on the host no more
        send = gpu.send
        gpu.send = lambda *given: kept.append(private_bytes()) or send(*given)
        before = private_bytes()
        loaded = load_target_parts(str(path), dtype=dtype, device="cuda").model
    assert max(kept) - before < sum(own.nbytes for own in loaded.parameters()) / 2
    assert {own.device.type for own in (*loaded.parameters(), *loaded.buffers())} == {"cuda"}
    assert sizes_of(loaded).weights_type == dtype


def private_bytes():
    """Memory of this process that is not a file's, which Linux takes back."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) << 10


@pytest.mark.gpu
def test_products_in_8_bits_that_differ_are_refused(tmp_path, monkeypatch):
    save_checkpoint(tmp_path)
    load_kernels("cuda")
    products = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *own, **of: 1.5 * products(*own, **of))
    loaded = load_model(str(tmp_path), dtype="fp8", device="cuda")
    with pytest.raises(ModelError, match=r"differ from transformers' own by .* \(limit 0\.3\)"):
        causal_model(loaded.model)


@pytest.mark.gpu
def test_weights_of_another_form_are_not_rounded_to_8_bits(tmp_path):
    checkpoint = save_checkpoint(tmp_path / "tiny")
    change_config(checkpoint, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(InvalidRequest, match="dtype is fp8, but tiny is quantised already"):
        load_model(str(checkpoint), dtype="fp8", device="cuda")
    path = str(tiny_gguf.write(tmp_path / "m.gguf", lambda _: "F16"))
    with pytest.raises(InvalidRequest, match=r"dtype is fp8, but m\.gguf is a GGUF file"):
        load_model(path, dtype="fp8", device="cuda")
