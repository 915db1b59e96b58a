"""Requests that can run, made of callers' options: everything that can be refused is here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slipstream.core.errors import (
    InvalidRequest,
    NotBuilt,
    PromptTooLong,
    UnsupportedCombination,
    check,
    check_fits,
    check_token_ids,
)
from slipstream.core.grammar import Grammar
from slipstream.core.logprobs import MAX_LOGPROBS, MAX_PROMPT_LOGPROBS
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.profile import DraftFacts, Settings, resolve
from slipstream.core.request.prompt import PLAIN_FORM, Prompt, PromptForm
from slipstream.core.request.results import PromptInfo
from slipstream.core.request.tools import ToolFormat, calls_grammar
from slipstream.core.text import check_stop_strings
from slipstream.core.types import SamplingParams, Session

DEFAULT_MAX_TOKENS = 256
MAX_MAX_TOKENS = 2**31 - 1
MAX_NAME_LENGTH = 128
MAX_STOP_TOKEN_IDS = 64
NO_DRAFTER = "none"
MODEL_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Sampling parameters of which models may have defaults."""

_SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a target, as it describes itself."""

    model_id: str
    vocab_size: int
    context_length: int
    stop_token_ids: frozenset[int]
    has_grammars: bool = False
    """True if the target can make its output follow a grammar."""
    max_logprobs: int | None = None
    """Most likely tokens that it returns of a position; None: no log-probabilities."""
    tool_format: ToolFormat | None = None
    """Format of its tool calls; None: it takes no tools."""
    is_fallback: bool = False
    """True if torch computes it on a CPU: it decodes plainly unless a request asks otherwise."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Values of some of `MODEL_DEFAULTS`, for requests that leave them to the model."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Parameters of one request, beside the prompt.

    The prompt is read by its `form`; `request_id` may be empty; `with_origins` has every token say
    where it came from, `with_rounds` chunks show their rounds, `num_logprobs` tokens say how likely
    they were, beside so many of the likeliest, `prompt_logprobs` the prompt's, too; the text
    follows the `grammar`; `stop_token_ids` end it beside the model's own, or with `ignore_eos` in
    their place; `model_defaults` are names of sampling parameters that give way to the model's
    default, where it has one; `max_tokens` None is all that the context has room for.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    form: PromptForm = PLAIN_FORM
    request_id: str = ""
    with_origins: bool = False
    num_logprobs: int | None = None
    grammar: Grammar | None = None
    with_rounds: bool = False
    prompt_logprobs: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    model_defaults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := set(self.model_defaults).difference(MODEL_DEFAULTS):
            raise InvalidRequest(
                f"model_defaults has {min(unknown)[:80]!r}, but must be of"
                f" {', '.join(MODEL_DEFAULTS)}"
            )
        limit = MAX_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        is_right = type(limit) is int and 1 <= limit <= MAX_MAX_TOKENS
        check(is_right, "max_tokens", limit, f"from 1 to {MAX_MAX_TOKENS}")
        check_stop_strings(self.stop)
        check_name("request_id", self.request_id)
        self._check_ends()
        count = self.num_logprobs
        is_right = count is None or (type(count) is int and 0 <= count <= MAX_LOGPROBS)
        check(is_right, "logprobs", count, f"0 to {MAX_LOGPROBS}")
        if self.prompt_logprobs and count is None:
            raise InvalidRequest("prompt_logprobs goes with logprobs, the number of tokens")

    def _check_ends(self) -> None:
        check_fits("stop_token_ids has", len(self.stop_token_ids), "tokens", MAX_STOP_TOKEN_IDS)
        check_token_ids("stop_token_ids", self.stop_token_ids)
        least, eos = self.sampling.min_tokens, self.ignore_eos
        given = {"stop_token_ids": self.stop_token_ids, "ignore_eos": eos, "min_tokens": least}
        if self.grammar is not None and (names := [name for name in given if given[name]]):
            raise UnsupportedCombination(f"{names[0]} goes without a grammar, which ends the text")
        if self.max_tokens is not None and least > self.max_tokens:
            raise InvalidRequest(f"min_tokens is {least}, but max_tokens is {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class SessionRef:
    """The conversation that a request belongs to; `create` begins it.

    `after` is the id of the request that must be its newest; empty for any.
    """

    session_id: str
    create: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        check_name("after", self.after)
        if self.create and self.after:
            raise InvalidRequest("a session that begins has no request that it can go on after")
        limit = "1 to 64 letters, digits, dots, dashes or underscores"
        is_right = _SESSION_ID.fullmatch(self.session_id) is not None
        check(is_right, "the session id", self.session_id[:80], limit)


@dataclass(frozen=True, slots=True)
class Generation:
    """Request of a caller: the prompt, its parameters, the model and the session.

    `model` may be empty where there is only one; without a session the request is on its own.
    `num_received` tokens of its output the caller holds from an answer that broke off.
    """

    prompt: Prompt
    ask: Ask = field(default_factory=Ask)
    model: str = ""
    session: SessionRef | None = None
    num_received: int = 0

    def __post_init__(self) -> None:
        check_name("model", self.model)
        count, most = self.num_received, self.ask.max_tokens or MAX_MAX_TOKENS
        is_right = type(count) is int and 0 <= count <= most
        check(is_right, "num_received", count, f"from 0 to max_tokens, which is {most}")
        if self.num_received and self.ask.prompt_logprobs:
            raise UnsupportedCombination("prompt_logprobs go with an answer from its beginning")
        if self.num_received and not self.ask.request_id:
            raise InvalidRequest("a request that goes on needs the request_id that it had")


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: token ids, limits and settings, and what is known of it.

    `tokens` are those before its output; `past` is the output that is final already, and the
    caller holds `num_received` tokens of the whole output, which with `goes_on` is within the text
    of the last of `tokens`.
    """

    session: Session
    tokens: tuple[int, ...]
    settings: Settings
    info: PromptInfo
    stop: tuple[str, ...] = ()
    past: tuple[int, ...] = ()
    num_received: int = 0
    with_origins: bool = False
    with_rounds: bool = False
    goes_on: bool = False


def make_request(
    session_id: str, tokens: Sequence[int], ask: Ask, model: ModelFacts, draft: DraftFacts
) -> Request:
    """Return a request to go on from `tokens`, which earlier turns are part of. Raises
    `InvalidRequest` for what can't be honoured with this model and this draft."""
    own = {name: it for name, it in model.sampling_defaults.items() if name in ask.model_defaults}
    ask = replace(ask, sampling=replace(ask.sampling, **own))  # type: ignore[arg-type]
    if model.is_fallback and ask.speculation == SpeculationOptions():
        ask = replace(ask, speculation=SpeculationOptions(mode=Mode.OFF))
    settings = draft_settings(ask.speculation, draft, temperature=ask.sampling.temperature)
    max_tokens = ask.max_tokens or max(model.context_length - len(tokens), 1)
    if len(tokens) + max_tokens > model.context_length:
        raise PromptTooLong(
            f"a prompt of {len(tokens)} tokens and up to {max_tokens} new ones exceed"
            f" the context of {model.context_length} tokens"
        )
    check_token_ids("logit_bias", dict(ask.sampling.logit_bias), model.vocab_size)
    _check_abilities(ask, model, settings)
    if ask.prompt_logprobs:
        num_values, what = len(tokens) * (1 + (ask.num_logprobs or 0)), "log probabilities"
        check_fits(f"a prompt of {len(tokens)} tokens has", num_values, what, MAX_PROMPT_LOGPROBS)
    tool_format = model.tool_format if model.has_grammars else None
    session = Session(
        session_id=session_id,
        num_prompt_tokens=len(tokens),
        max_tokens=max_tokens,
        sampling=ask.sampling,
        verification=settings.verification,
        stop_token_ids=_ends(ask, model),
        num_roots=settings.num_roots,
        grammar=ask.grammar or calls_grammar(ask.form.tools, tool_format),
        num_logprobs=ask.num_logprobs,
        has_prompt_logprobs=ask.prompt_logprobs,
        vocab_size=model.vocab_size,
    )
    names = (ask.request_id, model.model_id, ask.sampling.seed)
    info = PromptInfo(*names, len(tokens), model.tool_format)
    shown = (ask.with_origins, ask.with_rounds, ask.form.goes_on)
    return Request(session, tuple(tokens), settings, info, ask.stop, (), 0, *shown)


def draft_settings(
    options: SpeculationOptions, draft: DraftFacts, *, temperature: float = 0.0
) -> Settings:
    """The options with nothing left open. Raises `InvalidRequest` where the draft can't follow."""
    if options.drafter is not None and options.drafter != draft.kind:
        raise UnsupportedCombination(f"drafter {options.drafter} is not here, but {draft.kind} is")
    if draft.kind == NO_DRAFTER:
        if options != SpeculationOptions() and options.mode is not Mode.OFF:
            raise InvalidRequest("the engine has no draft, so nothing can be asked of one")
        options = SpeculationOptions(mode=Mode.OFF)
        draft = replace(draft, kind="ngram")
    asked = max(options.max_draft_tokens or 0, len(options.widths or ()))
    if draft.max_lag is not None and asked > draft.max_lag:
        raise InvalidRequest(
            f"{asked} draft tokens are asked for, but the draft was trained for paths of at most"
            f" {draft.max_lag}"
        )
    return resolve(options, draft, temperature=temperature)


def _check_abilities(ask: Ask, model: ModelFacts, settings: Settings) -> None:
    if ask.form.tools and model.tool_format is None:
        raise NotBuilt("tools are given, but the model has no format to call them in")
    if ask.grammar is not None and not model.has_grammars:
        raise NotBuilt(f"a {ask.grammar.kind.value} is given, but the target can't follow any")
    if ask.num_logprobs is None:
        return
    if model.max_logprobs is None:
        raise NotBuilt("logprobs are asked for, but the target tells none")
    if ask.num_logprobs > model.max_logprobs:
        raise InvalidRequest(
            f"logprobs is {ask.num_logprobs}, but the target tells at most {model.max_logprobs}"
        )
    if not settings.verification.is_lossless:
        raise UnsupportedCombination(
            f"logprobs do not go with verification {settings.verification.value}"
        )


def _ends(ask: Ask, model: ModelFacts) -> frozenset[int]:
    check_token_ids("stop_token_ids", ask.stop_token_ids, model.vocab_size)
    own = frozenset[int]() if ask.ignore_eos else model.stop_token_ids
    return own | set(ask.stop_token_ids)


def check_name(what: str, name: str) -> None:
    """Raise `InvalidRequest` for a name that is long, or not one line of printable ASCII."""
    # Names come back in errors and logs, where line breaks would forge lines.
    is_right = len(name) <= MAX_NAME_LENGTH and name.isascii() and name.isprintable()
    check(is_right, what, name[:80], f"at most {MAX_NAME_LENGTH} printable ASCII characters")
