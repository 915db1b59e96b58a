"""Swaps the slow parts of a transformers model for equal, faster ones; the rest stays its own.

What has the usual form (separate q, k, v, o projections with rotary embedding by halves, gated
MLP, RMS norms) becomes a part of `blocks.py`; everything else keeps transformers' module.
`causal.py` compares the model's output before and after, so that a module that only looks
like the usual form is found at load and not in somebody's text.
"""

from torch import nn

from slipstream.models.blocks import (
    FastAttention,
    FastLayer,
    FastLinear,
    FastMlp,
    FastNorm,
    Rotation,
)
from slipstream.models.products import Products

_MLP = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LAYER = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def operate(model: nn.Module, products: Products, rotation: Rotation) -> None:
    """Swap every part of `model` that has an equal, faster form, from the leaves up."""
    for name, child in list(model.named_children()):
        swapped = _swapped(child, products, rotation)
        if swapped is None:
            operate(child, products, rotation)
            swapped = _layer(child) or child
        setattr(model, name, swapped)


def _swapped(module: nn.Module, products: Products, rotation: Rotation) -> nn.Module | None:
    if _is_usual_attention(module):
        return FastAttention(module, products, rotation)
    if _has_linears(module, _MLP) and callable(getattr(module, "act_fn", None)):
        return FastMlp(module, products)
    if isinstance(module, nn.Linear):
        return FastLinear(module, products)
    return FastNorm(module) if is_usual_norm(module) else None


def _has_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)


def is_usual_norm(module: object) -> bool:
    """Return whether a module is an RMS norm of the usual form."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _is_usual_attention(module: nn.Module) -> bool:
    norms = (getattr(module, "q_norm", None), getattr(module, "k_norm", None))
    return (
        _has_linears(module, _ATTENTION)
        and hasattr(module, "scaling")
        and (norms == (None, None) or all(map(is_usual_norm, norms)))
    )


def _layer(module: nn.Module) -> FastLayer | None:
    """A layer out of exactly the four parts of a pre-norm one, each swapped already."""
    parts = dict(module.named_children())
    if parts.keys() != set(_LAYER):
        return None
    first, attention, second, mlp = (parts[name] for name in _LAYER)
    if not isinstance(first, FastNorm) or not isinstance(second, FastNorm):
        return None
    if not isinstance(attention, FastAttention) or not isinstance(mlp, FastMlp):
        return None
    return FastLayer((first, second), attention, mlp)
