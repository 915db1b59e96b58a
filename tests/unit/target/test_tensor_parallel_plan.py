"""Which models and machines a target can't be shared on, said before anything is started."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MixtralConfig, Phi3Config

from slipstream.core.errors import InvalidRequest
from slipstream.models.torch.loading import check_ranks
from slipstream.options import build
from slipstream_target.config import TargetConfig
from slipstream_target.tensor_parallel import check_devices

ODD = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
SHAPE = {"num_attention_heads": 8, "num_key_value_heads": 4}


def saved(folder, config):
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("config", [LlamaConfig(**SHAPE), MixtralConfig(**SHAPE)])
def test_a_model_whose_heads_divide_can_be_split(tmp_path, config):
    for num_ranks in (2, 4):
        check_ranks(saved(tmp_path, config), num_ranks)


@pytest.mark.parametrize(
    ("config", "num_ranks", "reason"),
    [
        (LlamaConfig(**SHAPE), 3, "has 4 key heads, which don't divide among so many"),
        (LlamaConfig(**SHAPE), 8, "tensor_parallel is 8, but .* has 4 key heads"),
        (LlamaConfig(**ODD), 2, "has 3 key heads"),
        (GPT2Config(), 2, "no plan that splits the attention of a gpt2 model"),
        (Phi3Config(), 2, "no plan that splits the attention of a phi3 model"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_in_a_sentence(tmp_path, config, num_ranks, reason):
    with pytest.raises(InvalidRequest, match=reason):
        check_ranks(saved(tmp_path, config), num_ranks)


def test_quantised_weights_and_gguf_files_stay_whole(tmp_path):
    config = LlamaConfig(**SHAPE)
    config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(InvalidRequest, match="has FP8 weights, which stay whole"):
        check_ranks(saved(tmp_path, config), 2)
    file = tmp_path / "tiny.gguf"
    file.touch()
    with pytest.raises(InvalidRequest, match=r"tiny\.gguf is a GGUF file, which can't be split"):
        check_ranks(file, 2)


def test_ranks_take_the_first_gpus_or_a_machine_without_any():
    with pytest.raises(InvalidRequest, match="device is cuda:1: say cuda"):
        check_devices("cuda:1", 2)
    with pytest.raises(InvalidRequest, match="tensor_parallel is 99, but this machine has"):
        check_devices("cuda", 99)
    if torch.accelerator.is_available():
        with pytest.raises(InvalidRequest, match="hide them"):
            check_devices("cpu", 2)
    else:
        check_devices("cpu", 2)


def test_ranks_share_the_threads_of_the_machine():
    all_threads = torch.get_num_threads()
    assert TargetConfig().rank_threads() is None
    assert build(TargetConfig, tensor_parallel=2).rank_threads() == max(1, all_threads // 2)
    assert build(TargetConfig, tensor_parallel=2, threads=3).rank_threads() == 3
    with pytest.raises(InvalidRequest, match="tensor_parallel is 0, but must be above 0"):
        build(TargetConfig, tensor_parallel=0)
