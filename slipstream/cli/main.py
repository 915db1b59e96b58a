"""The `slipstream` command: its parts, and the exit codes of errors.

0: done. 2: the request or a model can't be used as asked. 1: anything else that failed.
130: interrupted.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import typer

import slipstream
from slipstream.cli.engine import shorten_spins
from slipstream.core.errors import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    InvalidRequest,
    ModelError,
    SlipstreamError,
    TrainingError,
)

_COMMANDS = ("generate", "chat", "check", "doctor", "up", "trace", "size")
"""Commands, each a function of its name in a module of its name."""
_GROUPS = ("models", "keys")
_SERVICES = {
    "target": ("target", "Verify what drafts propose; holds the model."),
    "draft": ("draft", "Propose tokens for a target to verify."),
    "router": ("router", "Run requests on drafts and targets. Loads no model."),
    "http": ("gateway", "Serve OpenAI's HTTP API for a router. Loads no model."),
}

# Modules of these commands load what few need: they are imported only when the commands are called.
_LATER = {
    "bench": ("slipstream.cli.bench", "Measure speed and identity."),
    "train": ("slipstream.cli.train", "Train draft models."),
    "calibrate": ("slipstream.cli.calibrate", "Find the fastest way to draft, for a profile."),
}
_COMPLETION = ("--install-completion", "--show-completion", "--help")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


class WarningPrinter(logging.Handler):
    """Handler that prints each warning of the library once, as `warning: ` and its message."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._shown:
            self._shown.add(message)
            typer.echo(f"warning: {message}", err=True)


def app_of(words: Sequence[str]) -> typer.Typer:
    """Return the application that runs a command line: with the command that the first word names,
    without the imports of the others, or with all."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=not words or words[0] in _COMPLETION,
        pretty_exceptions_enable=False,
    )
    app.callback()(_settings)
    known = (*_COMMANDS, "serve", *_GROUPS)
    for name in [name for name in words[:1] if name in known] or known:
        if name == "serve":
            app.add_typer(_serve_group(), name=name)
        elif name in _GROUPS:
            app.add_typer(import_module(f"slipstream.cli.{name}").app, name=name)
        else:
            app.command(name)(getattr(import_module(f"slipstream.cli.{name}"), name))
    for name, (path, text) in _LATER.items():
        _mount_later(app, name, path, text)
    app.command()(version)
    return app


def _settings() -> None:
    """Speculative decoding: a draft proposes, a target verifies, the text is the same."""


def _serve_group() -> typer.Typer:
    """Return `slipstream serve`: one of the services in this process, with its own flags."""
    text = "Run a service: target, draft, router or http."
    group = typer.Typer(help=text, no_args_is_help=True)
    group.callback(help=text)(lambda: None)
    for role, (package, about) in _SERVICES.items():
        _mount_service(group, role, package, about)
    return group


def _mount_service(group: typer.Typer, role: str, package: str, text: str) -> None:
    @group.command(role, help=text, context_settings=_PASS_ON, add_help_option=False)
    def serve(context: typer.Context) -> None:
        # Imported when it is called, so that a router never loads torch.
        raise typer.Exit(import_module(f"slipstream_{package}.__main__").main(context.args))


def _mount_later(app: typer.Typer, name: str, module: str, text: str) -> None:
    settings = _PASS_ON | {"allow_interspersed_args": False}

    @app.command(name, help=text, context_settings=settings, add_help_option=False)
    def later(context: typer.Context) -> None:
        shorten_spins()
        group = import_module(module).app
        code = group(args=context.args, prog_name=f"slipstream {name}", standalone_mode=False)
        raise typer.Exit(code or 0)


def version() -> None:
    """Print the version."""
    typer.echo(slipstream.__version__)


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code: the console script."""
    sys.exit(exit_code(args))


def exit_code(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is one sentence on standard error."""
    # Where a logger has no handler of its own, as in most commands.
    logging.lastResort = WarningPrinter()
    try:
        app = app_of(sys.argv[1:] if args is None else args)
        return int(app(args=args, prog_name="slipstream", standalone_mode=False) or 0)
    except SlipstreamError as error:
        is_input = isinstance(error, InvalidRequest | ModelError | TrainingError)
        return _fail(str(error), BAD_INPUT if is_input else FAILED)
    except ModuleNotFoundError as missing:
        if (missing.name or "slipstream").startswith("slipstream"):
            raise
        # A client's installation lacks what engines and routers need.
        package = (missing.name or "").partition(".")[0]
        extra = "torch" if package in ("torch", "transformers") else "engine"
        return _fail(f"this needs {package}: pip install 'slipstream[{extra}]'", BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed it; leave nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        # Usage errors of whichever click is underneath; the rest are bugs and show as such.
        if not hasattr(error, "format_message"):
            raise
        return _fail(error.format_message(), BAD_INPUT)


def _fail(sentence: str, code: int) -> int:
    if sentence:  # empty where help was printed
        typer.echo(f"error: {sentence}", err=True)
    return code


if __name__ == "__main__":
    run()
