"""Settings from files, the environment and flags; the environment is read here only.

Independent of models, services and commands: a service passes the dataclass of its options.
"""

import argparse
import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_origin
from urllib.parse import urlsplit

from slipstream.core.errors import InvalidRequest
from slipstream.files import parse_toml, path_of, read_text
from slipstream.options import Given, Option, build, convert, items, options_of, without_none

CACHE_VARIABLE = "SLIPSTREAM_CACHE"
OFFLINE_VARIABLE = "SLIPSTREAM_OFFLINE"
TOKEN_VARIABLE = "SLIPSTREAM_TOKEN"
NATIVE_VARIABLE = "SLIPSTREAM_NATIVE"
SECTIONS = ("target", "draft", "router", "http", "telemetry")
"""Tables of a configuration file: one for each service, and the one that all share."""
_ISA_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE", NATIVE_VARIABLE),
)

T = TypeVar("T")
_MASK = "***"
_SECRETS = ("TOKEN", "PASSWORD", "KEY", "SECRET")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC takes its proxy from: the first that is set, though it be empty."""


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """Settings of the whole process, which the environment alone decides."""

    cache_dir: Path
    """Directory of converted models: `SLIPSTREAM_CACHE`, else in the user's cache directory."""
    offline: bool = False
    """Never fetch a model from the network: `SLIPSTREAM_OFFLINE=1`."""
    token: str | None = field(default=None, repr=False)
    """Bearer token of clients: `SLIPSTREAM_TOKEN`."""


def load_settings(env: Mapping[str, str] | None = None) -> EnvironmentSettings:
    """Read the settings from `env`, by default the process's environment.

    Raises `InvalidRequest` for a value that can't be understood.
    """
    env = os.environ if env is None else env
    offline = env.get(OFFLINE_VARIABLE, "").strip() or "0"
    return EnvironmentSettings(
        cache_dir=_cache_dir(env, "models"),
        offline=convert(Given(offline, OFFLINE_VARIABLE), bool),
        token=env.get(TOKEN_VARIABLE) or None,
    )


def traces_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return where `slipstream up` keeps traces: beside the models, or in `SLIPSTREAM_CACHE`."""
    return _cache_dir(os.environ if env is None else env, "traces")


def measurements_dir() -> Path:
    """Return where measurements of this machine are kept, beside the models."""
    return _cache_dir(os.environ, "measured")


def tokenizers_dir() -> Path:
    """Return where tokenizers are kept that were read once, beside the models."""
    return _cache_dir(os.environ, "tokenizers")


def instruction_limits() -> dict[str, str]:
    """Return the variables that keep libraries from some of the processor's instructions."""
    return {name: os.environ[name] for name in _ISA_VARIABLES if name in os.environ}


def native_kernels() -> str:
    """Return the native kernels that the environment names: a name, `off`, or empty."""
    return os.environ.get(NATIVE_VARIABLE, "")


def omp_threads() -> int | None:
    """Return OMP_NUM_THREADS as OpenMP takes it, its first number; None where it is none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else None


def otlp_endpoint(signal: str) -> str | None:
    """Return the collector's URL that OpenTelemetry's variables give for traces or metrics."""
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next(filter(None, map(os.environ.get, names)), None)


def environment_of(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return this process's variables whose names begin so, with secrets masked."""
    return {
        name: _MASK if any(part in name for part in _SECRETS) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefixes)
    }


def grpc_proxy() -> tuple[str, int] | None:
    """Return the variable that gives gRPC a proxy, and the proxy's port; None without a proxy."""
    name = next((name for name in _PROXIES if name in os.environ), "")
    value = os.environ.get(name, "")
    try:
        url = urlsplit(value if "//" in value else f"//{value}")
        return (name, url.port or 80) if url.hostname else None
    except ValueError:  # gRPC does not take it either
        return None


def are_local(address: str) -> bool:
    """Return whether all addresses are this machine's own: no proxy leads there."""
    parts = [part.strip() for part in address.split(",")]
    return all(part.startswith("unix:") or _is_loopback(host_in(part)) for part in parts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def host_in(part: str) -> str:
    host = part.rpartition(":")[0].rpartition("/")[2]
    for kind in ("ipv4:", "ipv6:", "dns:"):
        host = host.removeprefix(kind)
    return host.strip("[]")


def child_environment(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child, over `defaults`."""
    return {**defaults, **os.environ}


def set_local_rank(rank: int) -> None:
    """Set this process's number among the local ones for libraries, as torchrun does."""
    os.environ["LOCAL_RANK"] = str(rank)


def set_default_variables(values: Mapping[str, str]) -> None:
    """Set variables for libraries in this process and its children; those that are set stay."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def load_config(
    cls: Callable[..., T],
    *,
    section: str,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> T:
    """Return `cls`, a dataclass, from a file's table `section`, the environment and flags.

    A flag overrides the variable `SLIPSTREAM_<SECTION>_<OPTION>`, which overrides the file; an
    option that none of them gives has its default. In variables and flags, commas separate the
    items of a list and an empty text stands for None. Raises `InvalidRequest` for an unknown key,
    table, variable or flag, a value of another type, and whatever `cls` itself refuses.
    """
    known = {option.name: option for option in options_of(cls)}
    prefix = f"SLIPSTREAM_{section.upper()}_"
    given = {
        **_from_file(file, section, known),
        **_from_env(os.environ if env is None else env, prefix, known),
        **_from_flags(flags or {}, known),
    }
    for name, option in known.items():
        if name not in given and option.default is MISSING:
            raise InvalidRequest(f"{option.flag} is needed, or {prefix}{name.upper()}")
    values = {
        name: convert(value, known[name].kind, is_secret=known[name].is_secret)
        for name, value in given.items()
    }
    return build(cls, **values)


def parse_flags(
    classes: Sequence[Callable[..., Any]], argv: Sequence[str], *, prog: str, doc: str
) -> tuple[list[dict[str, Any]], Path | None]:
    """Return the flags given for each of the dataclasses, and the file named by `--config`.

    Values stay as they were typed, for `load_config`. `--help` prints and raises `SystemExit`.
    Raises `InvalidRequest` for a flag that no option has, or one without its value.
    """
    parser = argparse.ArgumentParser(prog, None, doc, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="TOML file with a table per service.")
    owned = [[option for option in options_of(cls) if not option.is_secret] for cls in classes]
    known = [option for own in owned for option in own]
    for option in known:
        _add_flag(parser, option)
    try:
        values, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{error.argument_name}: {error.message}") from None
    if rest:
        names = ", ".join(["--config", *(option.flag for option in known)])
        raise InvalidRequest(f"{prog} has no {rest[0]!r}; there are {names}")
    given = {name: value for name, value in vars(values).items() if value is not None}
    file = given.pop("config", None)
    parts = [
        {option.name: given[option.name] for option in own if option.name in given} for own in owned
    ]
    return parts, None if file is None else Path(file)


def resolved(config: Any) -> dict[str, Any]:
    """Return the values of a configuration as JSON takes them, secrets masked."""
    return {
        option.name: _shown(option.value_in(config), is_secret=option.is_secret)
        for option in options_of(type(config))
    }


def _cache_dir(env: Mapping[str, str], kind: str) -> Path:
    if chosen := env.get(CACHE_VARIABLE):  # names the directory of models itself
        models = path_of(chosen).absolute()
        return models if kind == "models" else models / kind
    base = env.get("XDG_CACHE_HOME") or path_of(env.get("HOME", "~")) / ".cache"
    return Path(base) / "slipstream" / kind


def _from_file(file: Path | None, section: str, known: Mapping[str, Option]) -> dict[str, Given]:
    if file is None:
        return {}
    tables = parse_toml(read_text(file), str(file))
    sections = sorted({*SECTIONS, section})
    for name, table in tables.items():
        if name not in sections or not isinstance(table, dict):
            what = "table" if isinstance(table, dict) else "key outside of a table"
            raise InvalidRequest(
                f"{file} has the {what} {name!r}; tables are {', '.join(sections)}"
            )
    values = tables.get(section, {})
    _check_known(values, known, f"[{section}] of {file}")
    return {
        name: Given(value, f"{name} in [{section}] of {file}", is_text=False)
        for name, value in values.items()
    }


def _from_env(env: Mapping[str, str], prefix: str, known: Mapping[str, Option]) -> dict[str, Given]:
    names = {prefix + name.upper(): name for name in known}
    values = {name: value for name, value in env.items() if name.startswith(prefix)}
    _check_known(values, names, "the environment")
    return {names[name]: Given(value, name) for name, value in values.items()}


def _from_flags(flags: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Given]:
    _check_known(flags, known, "the flags")
    return {
        name: Given(value, known[name].flag, is_text=isinstance(value, str))
        for name, value in flags.items()
    }


def _check_known(names: Mapping[str, Any], known: Mapping[str, Any], place: str) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{place} has {name!r}, but known are {', '.join(sorted(known))}")


def _add_flag(parser: argparse.ArgumentParser, option: Option) -> None:
    default = "" if option.default is MISSING else f" Default: {_default_text(option.default)}."
    text = (option.help + default).replace("%", "%%")
    kind, _ = without_none(option.kind)
    if kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(option.flag, action=action, default=None, help=text)
        return
    is_list = get_origin(kind) is tuple
    metavar = "A,B" if is_list else kind.__name__.upper()
    split: Callable[[str], Any] = items if is_list else str
    action_name = "extend" if is_list else "store"
    parser.add_argument(option.flag, metavar=metavar, type=split, action=action_name, help=text)


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
