"""`slipstream models`: what models are here, and getting one."""

from typing import Annotated

import typer

from slipstream.cli.progress import bars
from slipstream.core.policy.options import EAGLE

app = typer.Typer(help="List, fetch and locate models.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="An alias, a path or OWNER/NAME of the hub.")]


@app.command("list")
def list_() -> None:
    """Show the models with a short name and where they are."""
    from slipstream.models.format.resolve import list_models

    for model in list_models():
        place = model.path or "not on this machine"
        typer.echo(f"{model.name}  ({model.source})  {place}")


@app.command()
def pull(name: Name) -> None:
    """Fetch a model, or a head by eagle3:HEAD, unless it is here, and print its path."""
    from slipstream.models.format.resolve import resolve, resolve_head

    find = resolve_head if name.startswith(EAGLE) else resolve
    with bars() as progress:
        path = find(name.removeprefix(EAGLE), progress=progress)
    typer.echo(path)
