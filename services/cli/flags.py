"""Lets a command take a group of options as one dataclass. Knows nothing of which options."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every dataclass parameter of `command` by one option per field.

    The fields carry the `Annotated[..., typer.Option(...)]` and the defaults, or are such groups
    themselves.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _options_of(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def grouped(**values: Any) -> None:
        built = {name: _built(kind, values) for name, kind in groups.items()}
        command(**values, **built)

    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    # What typer looks at. `wraps` has set the first to the command's own.
    grouped.__annotations__ = annotations
    grouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    del grouped.__wrapped__
    return grouped


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for field in fields(group):
        kind = hints[field.name]
        if is_dataclass(kind):
            parameters += _options_of(kind)
        else:
            default = _default(field)
            parameters.append(
                inspect.Parameter(field.name, KEYWORD, annotation=kind, default=default)
            )
    return parameters


def _built(group: Any, values: dict[str, Any]) -> Any:
    """The group of these values, which are taken out of `values`."""
    hints = get_type_hints(group)
    parts = {
        field.name: _built(hints[field.name], values)
        if is_dataclass(hints[field.name])
        else values.pop(field.name)
        for field in fields(group)
    }
    return group(**parts)


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
