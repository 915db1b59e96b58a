"""Settings from files, the environment and flags; the environment is read here only.

Knows nothing of models, services or commands: a service hands in the dataclass of its options.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from slipstream.config_values import Given, convert, items, without_none
from slipstream.core.errors import InvalidRequest

CACHE_VARIABLE = "SLIPSTREAM_CACHE"
OFFLINE_VARIABLE = "SLIPSTREAM_OFFLINE"
TOKEN_VARIABLE = "SLIPSTREAM_TOKEN"
NATIVE_VARIABLE = "SLIPSTREAM_NATIVE"
SECTIONS = ("target", "draft", "router", "http", "telemetry")
"""Tables of a configuration file: one a service, and what all of them share."""

_ISA_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE", NATIVE_VARIABLE),
)

T = TypeVar("T")
_MASK = "***"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment decides for everything that runs; the rest is an argument."""

    cache_dir: Path
    """Where converted models are kept; `SLIPSTREAM_CACHE`, else the user's cache directory."""
    offline: bool = False
    """Never ask the network for a model; `SLIPSTREAM_OFFLINE=1`."""
    token: str | None = field(default=None, repr=False)
    """What a client shows to a router; `SLIPSTREAM_TOKEN`."""


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `env`, by default the process's environment.

    Raises `InvalidRequest` for a value that can't be understood.
    """
    env = os.environ if env is None else env
    offline = env.get(OFFLINE_VARIABLE, "").strip() or "0"
    return Settings(
        cache_dir=_cache_dir(env, "models"),
        offline=convert(Given(offline, OFFLINE_VARIABLE), bool),
        token=env.get(TOKEN_VARIABLE) or None,
    )


def traces_dir(env: Mapping[str, str] | None = None) -> Path:
    """Where `slipstream up` keeps traces: beside the models, or in `SLIPSTREAM_CACHE`."""
    return _cache_dir(os.environ if env is None else env, "traces")


def measurements_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return where measurements of this machine are kept, beside the models."""
    return _cache_dir(os.environ if env is None else env, "measured")


def tokenizers_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return where tokenizers are kept that were read once, beside the models."""
    return _cache_dir(os.environ if env is None else env, "tokenizers")


def instruction_limits(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that keep libraries from some of the processor's instructions."""
    env = os.environ if env is None else env
    return {name: env[name] for name in _ISA_VARIABLES if name in env}


def native_kernels() -> str:
    """Return the native kernels that the environment asks for: a name, `off`, or empty."""
    return os.environ.get(NATIVE_VARIABLE, "")


def child_environment(defaults: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child, with `defaults` where it says nothing."""
    return {**defaults, **os.environ}


def say_rank(rank: int) -> None:
    """Tell libraries in this process which of the local processes it is, as torchrun would."""
    os.environ["LOCAL_RANK"] = str(rank)


def usually(values: Mapping[str, str]) -> None:
    """Variables that libraries in this process and its children read; what the user says stays."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def option(default: T, help: str, *, secret: bool = False) -> T:
    """A field of a service's options, with the line that says what it is.

    A secret has no flag, because everybody can read a process's arguments, and is never logged.
    """
    at: T = field(default=default, metadata={"help": help, "secret": secret})
    return at


def load_config(
    cls: Callable[..., T],
    *,
    section: str,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> T:
    """`cls`, a dataclass, out of a file's table `section`, the environment and flags.

    A flag overrides the variable `SLIPSTREAM_<SECTION>_<FIELD>`, which overrides the file; what
    none of them says has the field's default. In variables and flags, commas part the items of a
    list and an empty text stands for None. Raises `InvalidRequest` for an unknown key, table,
    variable or flag, a value of another type, and whatever `cls` itself refuses.
    """
    kinds = get_type_hints(cls)
    env = os.environ if env is None else env
    given = {
        **_from_file(file, section, kinds),
        **_from_env(env, f"SLIPSTREAM_{section.upper()}_", kinds),
        **_from_flags(flags or {}, kinds),
    }
    for at in _fields(cls):
        if at.name not in given and at.default is MISSING and at.default_factory is MISSING:
            variable = f"SLIPSTREAM_{section.upper()}_{at.name.upper()}"
            raise InvalidRequest(f"{_flag(at.name)} is needed, or {variable}")
    return cls(**{name: convert(value, kinds[name]) for name, value in given.items()})


def parse_flags(
    classes: Sequence[Callable[..., Any]], argv: Sequence[str], *, prog: str, doc: str
) -> tuple[list[dict[str, Any]], Path | None]:
    """Return the flags given for each of the dataclasses, and the file named by `--config`.

    Values stay as they were typed, for `load_config`. `--help` prints and raises `SystemExit`.
    Raises `InvalidRequest` for a flag that no field has, or one without its value.
    """
    parser = argparse.ArgumentParser(prog, None, doc, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="TOML file with a table per service.")
    known = [(at, kind) for cls in classes for at, kind in _flagged(cls)]
    for at, kind in known:
        _add_flag(parser, at, kind)
    try:
        values, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{error.argument_name}: {error.message}") from None
    if rest:
        names = ", ".join(["--config", *(_flag(at.name) for at, _ in known)])
        raise InvalidRequest(f"{prog} has no {rest[0]!r}; there are {names}")
    given = {name: value for name, value in vars(values).items() if value is not None}
    file = given.pop("config", None)
    owned = [{at.name for at in _fields(cls)} for cls in classes]
    parts = [{name: given[name] for name in given if name in own} for own in owned]
    return parts, None if file is None else Path(file)


def resolved(config: Any) -> dict[str, Any]:
    """The values of a configuration as JSON takes them, secrets masked."""
    return {
        at.name: _shown(getattr(config, at.name), is_secret=at.metadata.get("secret", False))
        for at in fields(config)
    }


def _cache_dir(env: Mapping[str, str], kind: str) -> Path:
    if chosen := env.get(CACHE_VARIABLE):  # names the directory of models itself
        models = Path(chosen).expanduser().absolute()
        return models if kind == "models" else models / kind
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".cache"
    return Path(base) / "slipstream" / kind


def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return fields(cls)


def _flagged(cls: Callable[..., Any]) -> list[tuple[Field[Any], Any]]:
    """The fields that have a flag, with their types: all but secrets."""
    kinds = get_type_hints(cls)
    return [(at, kinds[at.name]) for at in _fields(cls) if not at.metadata.get("secret")]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _from_file(file: Path | None, section: str, kinds: Mapping[str, Any]) -> dict[str, Given]:
    if file is None:
        return {}
    tables = _read(file)
    known = sorted({*SECTIONS, section})
    for name, table in tables.items():
        if name not in known or not isinstance(table, dict):
            what = "table" if isinstance(table, dict) else "key outside of a table"
            raise InvalidRequest(f"{file} has the {what} {name!r}; tables are {', '.join(known)}")
    values = tables.get(section, {})
    _check_known(values, kinds, f"[{section}] of {file}")
    return {
        name: Given(value, f"{name} in [{section}] of {file}", is_text=False)
        for name, value in values.items()
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InvalidRequest(f"{file} is not TOML ({str(error).splitlines()[0]})") from None


def _from_env(env: Mapping[str, str], prefix: str, kinds: Mapping[str, Any]) -> dict[str, Given]:
    names = {prefix + name.upper(): name for name in kinds}
    values = {name: value for name, value in env.items() if name.startswith(prefix)}
    _check_known(values, names, "the environment")
    return {names[name]: Given(value, name) for name, value in values.items()}


def _from_flags(flags: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Given]:
    _check_known(flags, kinds, "the flags")
    return {
        name: Given(value, _flag(name), is_text=isinstance(value, str))
        for name, value in flags.items()
    }


def _check_known(names: Mapping[str, Any], known: Mapping[str, Any], place: str) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{place} has {name!r}, but known are {', '.join(sorted(known))}")


def _add_flag(parser: argparse.ArgumentParser, at: Field[Any], kind: Any) -> None:
    default = "" if at.default is MISSING else f" Default: {_default_text(at.default)}."
    text = (at.metadata.get("help", "") + default).replace("%", "%%")
    kind, _ = without_none(kind)
    if kind is bool:
        parser.add_argument(
            _flag(at.name), action=argparse.BooleanOptionalAction, default=None, help=text
        )
        return
    is_list = get_origin(kind) is tuple
    metavar = "A,B" if is_list else kind.__name__.upper()
    action = "extend" if is_list else "store"
    split: Callable[[str], Any] = items if is_list else str
    parser.add_argument(_flag(at.name), metavar=metavar, type=split, action=action, help=text)


def _default_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "unset" if value is None else str(value)


def _shown(value: Any, *, is_secret: bool) -> Any:
    if is_secret:
        return None if value is None else _MASK
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
