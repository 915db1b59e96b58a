"""The options that commands share, in groups, and their values for the SDK. Loads no torch."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams, Shape, StopPolicy, Verification
from slipstream.files import read_text, read_token
from slipstream.options import option, options_of, parse_numbers

DEFAULT_TARGET = "smollm2-135m-q4_1"


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """A draft, and how models run. None stands for the default that is shown."""

    draft: str | None = option(
        None,
        "glide, ngram, none, vanilla:MODEL, eagle3:HEAD or a directory of GliDe weights.",
        show_default="glide",
    )
    dtype: str | None = option(
        None,
        "auto, bfloat16, float16, float32, or 8 bits: q8 (CPUs) or fp8 (GPUs).",
        show_default="auto",
    )
    numerics: str | None = option(
        None,
        "invariant: the same bits whatever is drafted; fast: near-ties may differ; auto:"
        " invariant, but fast where torch computes on a CPU.",
        show_default="auto",
    )
    threads: int | None = option(
        None, "CPU threads of each model.", show_default="one for each core"
    )
    device: str | None = option(None, "cpu, cuda or cuda:N.", show_default="cpu")
    profile: Path | None = option(
        None, "Profile file of `slipstream calibrate`.", show_default="the draft's own"
    )

    def given(self) -> dict[str, Any]:
        """Return the options that are given, by the names of `Client.embedded`."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class EngineFlags(DraftFlags):
    """Models of this process, how they run, and what they keep."""

    PANEL: ClassVar[str] = "Engine"

    target: str | None = option(
        None,
        "Target model: an alias, a path or OWNER/NAME of the hub.",
        show_default=DEFAULT_TARGET,
    )
    kv_memory: str | None = option(
        None,
        "Memory for keys and values of each engine: 2GiB, or a share of what is free, 0.5.",
        show_default="auto",
    )
    ngrams: str | None = option(
        None, "auto, none or a file of `slipstream train ngrams`.", show_default="auto"
    )


@dataclass(frozen=True, slots=True)
class RouterFlags:
    """A router that runs the models, in place of this process."""

    PANEL: ClassVar[str] = "Router"

    router: str | None = option(
        None, "HOST:PORT of a router, or several; no model is loaded in this process."
    )
    model: str | None = option(
        None, "Name of one of the router's models.", show_default="its only one"
    )
    token_file: Path | None = option(
        None, "File with the bearer token.", show_default="that of SLIPSTREAM_TOKEN"
    )
    tls: bool = option(False, "Use TLS, trusting the system's authorities.")
    tls_ca: Path | None = option(None, "Use TLS, trusting the certificates in this file.")
    tls_cert: Path | None = option(None, "Certificate to show to a router that needs one.")
    tls_key: Path | None = option(None, "Its private key.")
    tls_name: str | None = option(
        None, "Name in the router's certificate.", show_default="that of the address"
    )

    def token(self) -> str | None:
        """Return the bearer token. Raises `InvalidRequest` for a file without one."""
        return load_settings().token if self.token_file is None else read_token(self.token_file)


@dataclass(frozen=True, slots=True)
class PlaceFlags:
    """The place of the models: this process, or behind a router."""

    engine: EngineFlags
    router: RouterFlags

    @property
    def is_remote(self) -> bool:
        return self.router.router is not None

    def check(self) -> None:
        """Raise `UnsupportedCombination` for options of the place that is not chosen."""
        if self.is_remote and (engine := self.engine.given()):
            flag = "--" + min(engine).replace("_", "-")
            raise UnsupportedCombination(
                f"{flag} runs models in this process, but --router elsewhere"
            )
        given = [option.flag for option in options_of(RouterFlags) if option.value_in(self.router)]
        if given and not self.is_remote:
            raise UnsupportedCombination(f"{given[0]} goes with --router only")


@dataclass(frozen=True, slots=True)
class LengthFlags:
    """End of a text."""

    PANEL: ClassVar[str] = "Length"

    max_new_tokens: int = option(128, "Maximum number of tokens to generate.")
    stop: tuple[str, ...] = option((), "Text to stop before; repeatable.")


@dataclass(frozen=True, slots=True)
class FormFlags:
    """Structured output."""

    PANEL: ClassVar[str] = "Structured output"

    json_schema: str | None = option(
        None, "JSON schema that the text follows: a file, or the JSON itself."
    )
    regex: str | None = option(None, "Regular expression that the whole text matches.")

    def given(self) -> dict[str, str]:
        """Return the form as the SDK takes it. Raises `InvalidRequest` for an unreadable file."""
        form = {} if self.regex is None else {"regex": self.regex}
        if self.json_schema is not None:
            text = self.json_schema
            is_text = text.lstrip().startswith("{") or text.strip() in ("true", "false")
            form["json_schema"] = text if is_text else read_text(Path(text))
        if len(form) > 1:
            raise UnsupportedCombination("--json-schema and --regex are given, one can be followed")
        return form


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """Distribution of the tokens; the fields are those of `SamplingParams`."""

    PANEL: ClassVar[str] = "Sampling"

    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    top_k: int | None = option(None, "Keep the K likeliest tokens.")
    top_p: float = option(1.0, "Keep the likeliest tokens up to this probability in all.")
    min_p: float = option(0.0, "Keep tokens with this probability relative to the likeliest.")
    repetition_penalty: float = option(1.0, "Divides scores of tokens in prompt and output.")
    presence_penalty: float = option(0.0, "Subtracted from scores of tokens in the output.")
    frequency_penalty: float = option(
        0.0, "Subtracted from scores of tokens for each time that they are in the output."
    )
    logit_bias: tuple[str, ...] = option((), "ID=VALUE, added to a token's score; repeatable.")
    seed: int = option(0, "The same seed gives the same text.")
    min_tokens: int = option(0, "Tokens before which nothing ends the text but a stop string.")

    def params(self) -> SamplingParams:
        """Return how tokens are drawn. Raises `InvalidRequest` for a value out of range."""
        biases = tuple(_bias(text) for text in self.logit_bias)
        return SamplingParams(**{**asdict(self), "logit_bias": biases})


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """Options of drafting and verification; those not given have the engine's calibrated value."""

    PANEL: ClassVar[str] = "Speculation"

    speculation: Mode = option(
        Mode.AUTO, "auto: while it pays; off: plain decoding; forced: always."
    )
    shape: Shape | None = option(None, "Shape of the token tree.")
    stop_policy: StopPolicy | None = option(None, "Rule that ends drafting within a round.")
    threshold: float | None = option(None, "Threshold of the stop policy.")
    max_draft_tokens: int | None = option(None, "Longest path drafted in a round.")
    max_nodes: int | None = option(None, "Largest tree drafted.")
    widths: str | None = option(None, "Children per depth of shape product, as 4,2,1.")
    verification: Verification | None = option(
        None, "exact: the tokens of plain decoding. target-init is NOT lossless."
    )
    num_roots: int | None = option(None, "Roots of target-init.")
    lookup: bool | None = option(
        None, "Copy what the text repeats, beside what the draft proposes."
    )

    def options(self) -> SpeculationOptions:
        """Return the options of the SDK. Raises `InvalidRequest` for values that can't be."""
        values = asdict(self)
        values["mode"], values["stop"] = values.pop("speculation"), values.pop("stop_policy")
        if self.widths is not None:
            values["widths"] = parse_numbers("widths", self.widths)
        return SpeculationOptions(**values)


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """Everything about a request but its prompt."""

    length: LengthFlags
    form: FormFlags
    sampling: SamplingFlags
    speculation: SpeculationFlags

    def options(self) -> dict[str, Any]:
        """Return arguments of `Client.stream`. Raises `InvalidRequest`."""
        return {
            "sampling": self.sampling.params(),
            "speculation": self.speculation.options(),
            "max_tokens": self.length.max_new_tokens,
            "stop": self.length.stop,
            **self.form.given(),
        }


def _bias(text: str) -> tuple[int, float]:
    number, _, value = text.partition("=")
    try:
        return int(number), float(value)
    except ValueError:
        raise InvalidRequest(f"a logit bias is {text!r}, but must be ID=VALUE") from None
