"""The options that commands share, in groups, and what they mean to the SDK. Loads no torch."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import typer

from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams, Shape, StopPolicy, Verification


def _option(
    panel: str, text: str, *, default: str | None = None, name: str | None = None
) -> object:
    shown = True if default is None else default
    names = () if name is None else (name,)
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=shown)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


DEFAULT_TARGET = "smollm2-135m"
ENGINE = "Engine"
ROUTER = "Router"
LENGTH = "Length"
FORM = "Form"
SAMPLING = "Sampling"
SPECULATION = "Speculation"


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Which models run in this process, and how. None stands for the default that is shown."""

    target: Annotated[
        str | None,
        _option(
            ENGINE,
            "Target model: an alias, a path or OWNER/NAME of the hub.",
            default=DEFAULT_TARGET,
        ),
    ] = None
    draft: Annotated[
        str | None,
        _option(
            ENGINE,
            "glide, ngram, none, vanilla:MODEL or a directory of GliDe weights.",
            default="glide",
        ),
    ] = None
    dtype: Annotated[
        str | None, _option(ENGINE, "auto, bfloat16, float16 or float32.", default="auto")
    ] = None
    numerics: Annotated[
        str | None,
        _option(
            ENGINE,
            "invariant: the same bits whatever is drafted; fast: near-ties may turn.",
            default="invariant",
        ),
    ] = None
    threads: Annotated[int | None, _option(ENGINE, "CPU threads.", default="torch's choice")] = None
    device: Annotated[str | None, _option(ENGINE, "cpu, cuda or cuda:N.", default="cpu")] = None
    kv_memory: Annotated[
        str | None,
        _option(
            ENGINE,
            "For keys and values of each engine: 2GiB, or a share of what is free, 0.5.",
            default="auto",
        ),
    ] = None
    profile: Annotated[
        Path | None,
        _option(ENGINE, "Profile file of `slipstream calibrate`.", default="the draft's own"),
    ] = None

    ngrams: Annotated[
        str | None,
        _option(ENGINE, "auto, none or a file of `slipstream train ngrams`.", default="auto"),
    ] = None

    def given(self) -> dict[str, str | int | Path]:
        """What was said, by the names of `Client.embedded`."""
        named = {at.name: getattr(self, at.name) for at in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RouterFlags:
    """Which router to ask, instead of running models in this process."""

    router: Annotated[
        str | None,
        _option(ROUTER, "HOST:PORT of a router, or several; no model is loaded here."),
    ] = None
    model: Annotated[
        str | None, _option(ROUTER, "Which of the router's models.", default="its only one")
    ] = None
    token_file: Annotated[
        Path | None,
        _option(ROUTER, "File with the bearer token.", default="what SLIPSTREAM_TOKEN says"),
    ] = None
    tls: Annotated[
        bool, _option(ROUTER, "Use TLS, trusting the system's authorities.", name="--tls")
    ] = False
    tls_ca: Annotated[
        Path | None, _option(ROUTER, "Use TLS, trusting the certificates in this file.")
    ] = None
    tls_cert: Annotated[
        Path | None, _option(ROUTER, "Certificate to show to a router that asks for one.")
    ] = None
    tls_key: Annotated[Path | None, _option(ROUTER, "Its private key.")] = None
    tls_name: Annotated[
        str | None,
        _option(ROUTER, "Name in the router's certificate.", default="that of the address"),
    ] = None

    def token(self) -> str | None:
        """What the router is shown. Raises `InvalidRequest` for a file that holds none."""
        if self.token_file is None:
            return load_settings().token
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise InvalidRequest(f"{self.token_file} can't be read ({reason})") from None
        if not token:
            raise InvalidRequest(f"{self.token_file} holds no token")
        return token


@dataclass(frozen=True, slots=True)
class PlaceFlags:
    """Where models run: in this process, or behind a router."""

    engine: EngineFlags
    router: RouterFlags

    @property
    def is_remote(self) -> bool:
        """Whether a router runs them."""
        return self.router.router is not None

    def check(self) -> None:
        """Raises `UnsupportedCombination` for options of the other place than the one chosen."""
        if self.is_remote and (engine := sorted(self.engine.given())):
            raise UnsupportedCombination(
                f"{_flag(engine[0])} runs models in this process, but --router elsewhere"
            )
        router = [at.name for at in fields(self.router) if getattr(self.router, at.name)]
        if router and not self.is_remote:
            raise UnsupportedCombination(f"{_flag(router[0])} goes with --router only")


@dataclass(frozen=True, slots=True)
class LengthFlags:
    """When a text ends, and what form it has until then."""

    max_new_tokens: Annotated[int, _option(LENGTH, "Most tokens to generate.")] = 128
    stop: Annotated[list[str], _option(LENGTH, "Text to stop before; repeatable.")] = field(
        default_factory=list
    )
    json_schema: Annotated[
        str | None, _option(FORM, "JSON schema that the text follows: a file, or the JSON itself.")
    ] = None
    regex: Annotated[
        str | None, _option(FORM, "Regular expression that the whole text matches.")
    ] = None

    def form(self) -> dict[str, str]:
        """Return the form as the SDK takes it. Raises `InvalidRequest` for an unreadable file."""
        form = {} if self.regex is None else {"regex": self.regex}
        if self.json_schema is not None:
            form["json_schema"] = _schema(self.json_schema)
        if len(form) > 1:
            raise UnsupportedCombination("--json-schema and --regex are given, one can be followed")
        return form


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The law to draw from."""

    temperature: Annotated[float, _option(SAMPLING, "0 is greedy.")] = 0.0
    top_k: Annotated[int | None, _option(SAMPLING, "Keep the K likeliest tokens.")] = None
    top_p: Annotated[float, _option(SAMPLING, "Keep the likeliest tokens up to this mass.")] = 1.0
    min_p: Annotated[
        float, _option(SAMPLING, "Keep tokens this likely relative to the likeliest.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, _option(SAMPLING, "Divides scores of tokens in prompt and output.")
    ] = 1.0
    presence_penalty: Annotated[
        float, _option(SAMPLING, "Taken from scores of tokens in the output.")
    ] = 0.0
    frequency_penalty: Annotated[float, _option(SAMPLING, "The same, once per occurrence.")] = 0.0
    logit_bias: Annotated[
        list[str], _option(SAMPLING, "ID=VALUE, added to a token's score; repeatable.")
    ] = field(default_factory=list)
    seed: Annotated[int, _option(SAMPLING, "The same seed gives the same text.")] = 0

    def params(self) -> SamplingParams:
        """Raises `InvalidRequest` for a value out of range."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(_bias(text) for text in self.logit_bias),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """How to draft and verify; what is not given is the engine's calibrated default."""

    speculation: Annotated[
        Mode, _option(SPECULATION, "auto: while it pays; off: plain decoding; forced: always.")
    ] = Mode.AUTO
    shape: Annotated[Shape | None, _option(SPECULATION, "Form of the token tree.")] = None
    stop_policy: Annotated[
        StopPolicy | None, _option(SPECULATION, "When drafting ends within a round.")
    ] = None
    threshold: Annotated[float | None, _option(SPECULATION, "Of the stop policy.")] = None
    max_draft_tokens: Annotated[
        int | None, _option(SPECULATION, "Longest path drafted in a round.")
    ] = None
    max_nodes: Annotated[int | None, _option(SPECULATION, "Largest tree drafted.")] = None
    widths: Annotated[
        str | None, _option(SPECULATION, "Children per depth of shape product, as 4,2,1.")
    ] = None
    verification: Annotated[
        Verification | None,
        _option(SPECULATION, "exact: the tokens of plain decoding. target-init is NOT lossless."),
    ] = None
    num_roots: Annotated[int | None, _option(SPECULATION, "Roots of target-init.")] = None
    lookup: Annotated[
        bool | None,
        _option(
            SPECULATION,
            "Copy what the text repeats, beside what the draft proposes.",
            name="--lookup/--no-lookup",
        ),
    ] = None

    def options(self) -> SpeculationOptions:
        """Raises `InvalidRequest` for values out of range or at odds with each other."""
        return SpeculationOptions(
            mode=self.speculation,
            max_draft_tokens=self.max_draft_tokens,
            max_nodes=self.max_nodes,
            shape=self.shape,
            stop=self.stop_policy,
            threshold=self.threshold,
            widths=None if self.widths is None else _widths(self.widths),
            verification=self.verification,
            num_roots=self.num_roots,
            lookup=self.lookup,
        )


def _schema(text: str) -> str:
    if text.lstrip().startswith("{") or text.strip() in ("true", "false"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InvalidRequest(f"the JSON schema {text[:80]!r} can't be read ({reason})") from None


def _bias(text: str) -> tuple[int, float]:
    number, _, value = text.partition("=")
    try:
        return int(number), float(value)
    except ValueError:
        raise InvalidRequest(f"a logit bias is {text!r}, but must be ID=VALUE") from None


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise InvalidRequest(f"widths are {text!r}, but must be numbers as 4,2,1") from None
