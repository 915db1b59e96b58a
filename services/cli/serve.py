"""`slipstream serve`: one of the services in this process, with the flags it has by itself."""

from collections.abc import Callable
from importlib import import_module

import typer

app = typer.Typer(help="Run a service: target, draft, router or http.", no_args_is_help=True)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_ROLES = {
    "target": "Verify what drafts propose; holds the model.",
    "draft": "Propose tokens for a target to verify.",
    "router": "Take requests, and lead drafts and targets through them. Loads no model.",
    "http": "Take requests as OpenAI's clients make them, for a router. Loads no model.",
}
_PACKAGES = {"http": "gateway"}
"""Packages with another name than their role."""


@app.callback()
def _group() -> None:
    """Run a service: target, draft, router or http."""


def _mount(role: str, text: str) -> None:
    @app.command(role, help=text, context_settings=_PASS_ON, add_help_option=False)
    def serve(context: typer.Context) -> None:
        # A service's modules come into being here, so that a router never meets torch.
        main: Callable[[list[str]], int] = import_module(_module(role)).main
        raise typer.Exit(main(context.args))


def _module(role: str) -> str:
    return f"slipstream.{_PACKAGES.get(role, role)}.__main__"


for _role, _text in _ROLES.items():
    _mount(_role, _text)
