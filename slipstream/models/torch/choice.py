"""Choice of a decoder in torch: plain on CPUs, captured on CUDA, one of several ranks where a model
is split."""

from transformers import PreTrainedModel

from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.models.cuda.decoder import CudaDecoder
from slipstream.models.cuda.layers import fuse, scale_linears
from slipstream.models.cuda.steady import make_steady, probed_rule
from slipstream.models.decoder import Decoder
from slipstream.models.dtypes import CPU
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.torch.decoder import TorchDecoder
from slipstream.models.torch.ranks import ALONE
from slipstream.models.torch.shards import localise
from slipstream.models.torch.tensor_parallel import TensorParallelGroup


def torch_decoder(
    model: PreTrainedModel,
    sizes: ModelSizes,
    *,
    numerics: str,
    split: TensorParallelGroup | None = None,
) -> Decoder:
    """Return the decoder of a model, or of this rank's part of one that is `split`, which every
    rank computes with then.

    Raises `InvalidRequest` for invariant numerics on a CPU, and `ModelError` for a device that has
    none.
    """
    layout, on_device = sizes.layout, sizes.layout.device != CPU
    load_kernels(layout.device)
    if numerics == "invariant" and not on_device:
        raise InvalidRequest(
            "numerics is invariant, but torch computes the model on a CPU, where they are fast:"
            " use auto or fast, or native kernels"
        )
    is_invariant = on_device and numerics != "fast"
    ranks = ALONE if split is None else split.ranks
    if ranks.size > 1:
        localise(model, ranks, in_order=is_invariant)
    if split is not None and split.is_scaled:
        scale_linears(model, str(model.device), head=model.get_output_embeddings())
    if on_device:
        fuse(model)
    rule = None
    if is_invariant:
        rule = ranks.agree_on_rule(probed_rule(model), model.device)
        make_steady(model, rule)
    given, length = (model, layout, rule, ranks), sizes.context_length
    return CudaDecoder(*given, context_length=length) if on_device else TorchDecoder(*given)


def load_kernels(device: str) -> None:
    """Load the operators of a GPU's tensors. Raises `ModelError` where they can't be compiled."""
    if device != CPU:
        try:
            from slipstream.models.cuda import attention_kernels, chain_kernels  # noqa: F401
        except ImportError:
            raise ModelError(f"{device} needs Triton: install slipstream[cuda]") from None
