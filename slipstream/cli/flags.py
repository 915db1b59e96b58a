"""Groups of options as parameters of commands: each field of a dataclass becomes a flag."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from slipstream.options import Option, build, options_of


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every dataclass parameter of `command` by one option of typer for each of its own.

    `PANEL` of the dataclass that has an option is the heading above it in `--help`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    owned = {name: tuple(options_of(kind)) for name, kind in groups.items()}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in owned:
            parameters += [_parameter(at) for at in owned[name]]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def grouped(**values: Any) -> None:
        built = {}
        for name, options in owned.items():
            given = {at.name: _value(at, values.pop(at.name)) for at in options}
            built[name] = build(groups[name], **given)
        command(**values, **built)

    # What typer looks at. `wraps` has set the first to the command's own.
    grouped.__annotations__ = {each.name: each.annotation for each in parameters}
    grouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    del grouped.__wrapped__
    return grouped


def _parameter(at: Option) -> inspect.Parameter:
    kind, default, shown = at.kind, at.default, dict(at.shown)
    names = shown.pop("names", (at.flag,) if kind is bool and default is False else ())
    if _is_list(at):
        kind, default = list[get_args(kind)[0]], default if default is MISSING else list(default)  # type: ignore[misc]
    shown.setdefault("rich_help_panel", getattr(at.owner, "PANEL", None))
    make: Callable[..., Any] = typer.Option
    if shown.pop("is_argument", False):
        make, names = typer.Argument, ()
    return inspect.Parameter(
        at.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, make(*names, help=at.help, **shown)],
        default=inspect.Parameter.empty if default is MISSING else default,
    )


def _value(at: Option, value: Any) -> Any:
    return tuple(value) if _is_list(at) else value


def _is_list(at: Option) -> bool:
    return get_origin(at.kind) is tuple
