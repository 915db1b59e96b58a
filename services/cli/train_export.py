"""`slipstream train export-hf`: a draft for other systems. Knows only options and printing."""

from pathlib import Path
from typing import Annotated

import typer

Weights = Annotated[Path, typer.Argument(help="Weights of a draft trained with --no-cross.")]
Target = Annotated[str, typer.Option(help="The draft's target: an alias, a path or a hub id.")]
Out = Annotated[Path, typer.Option(help="Directory for the checkpoint; must not exist.")]


def export_hf(weights: Weights, *, target: Target, out: Out) -> None:
    """Write a draft without cross-attention as a checkpoint that transformers loads."""
    from slipstream.models.glide_export import export_hf as export

    export(weights, target, out)
    typer.echo(out)
