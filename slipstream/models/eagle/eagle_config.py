"""Description of an EAGLE-3 head: its shapes, and the hidden states of the target that it reads."""

from dataclasses import dataclass
from typing import ClassVar

from slipstream.models.format.rope import Rotary


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shapes of an EAGLE-3 draft (EAGLE-3, arXiv 2503.01840, section 3).

    `target_layers` are the layers of the target whose inputs [target_hidden_size] are read: layer
    l's input is what layer l - 1 gives, the number of layers stands for the last one's output.
    `head_size` is the number of columns of its head. With `norms_residual` the residual stream
    starts behind the norm of the fused state; with `norms_states` all states together, and with
    `norms_each_state` each alone, pass a norm before they are fused; with `norms_output` the next
    step reads the state behind the last norm. `max_lag` is the largest distance between the newest
    state that is read and a token.
    """

    vocab_size: int
    head_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]
    rotary: Rotary
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    qk_norm: bool = False
    norms_residual: bool = False
    norms_states: bool = False
    norms_each_state: bool = False
    norms_output: bool = False
    max_lag: int = 32
    num_layers: ClassVar = 1


def default_layers(num_layers: int) -> tuple[int, int, int]:
    """Return the target layers whose inputs a head reads by default: low, middle and high."""
    return 2, num_layers // 2, num_layers - 3
