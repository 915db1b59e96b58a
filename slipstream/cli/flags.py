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
            parameters += [_parameter(option) for option in owned[name]]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def grouped(**values: Any) -> None:
        built = {}
        for name, options in owned.items():
            given = {option.name: values.pop(option.name) for option in options}
            given |= {name: tuple(of) for name, of in given.items() if isinstance(of, list)}
            built[name] = build(groups[name], **given)
        command(**values, **built)

    # What typer looks at. `wraps` has set the first to the command's own.
    grouped.__annotations__ = {each.name: each.annotation for each in parameters}
    grouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    del grouped.__wrapped__
    return grouped


def _parameter(option: Option) -> inspect.Parameter:
    kind, default, shown = option.kind, option.default, dict(option.shown)
    names = shown.pop("names", (option.flag,) if kind is bool and default is False else ())
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], default if default is MISSING else list(default)  # type: ignore[misc]
    shown.setdefault("rich_help_panel", getattr(option.owner, "PANEL", None))
    make: Callable[..., Any] = typer.Option
    if shown.pop("is_argument", False):
        make, names = typer.Argument, ()
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, make(*names, help=option.help, **shown)],
        default=inspect.Parameter.empty if default is MISSING else default,
    )
