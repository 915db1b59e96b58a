"""Options of what computes a model: element type, device, threads and memory."""

from dataclasses import dataclass

from slipstream.models.memory import AUTO, check_budget
from slipstream.options import check_bounds, option


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Element type, device, threads and memory of an engine."""

    dtype: str = option(
        "auto",
        "Element type of the weights: auto, bfloat16, float16, float32, or q8 (8-bit weights, on"
        " CPUs).",
    )
    device: str = option("cpu", "Device of the model: cpu, cuda or cuda:N.")
    threads: int | None = option(
        None, "CPU threads to compute with; unset, one for each core.", least=1
    )
    pin_threads: bool = option(
        False, "Keep each thread on a core of its own; for cores that services share."
    )
    kv_memory: str = option(
        AUTO, "Memory for keys and values: a size such as 2GiB, a share of what is free, or auto."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_budget(self.kv_memory)
