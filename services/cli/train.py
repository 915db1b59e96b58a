"""`slipstream train`: the commands that make drafts for a target, one module each."""

import typer

from slipstream.cli import (
    train_coverage,
    train_data,
    train_decision,
    train_export,
    train_glide,
    train_ngrams,
)

app = typer.Typer(help="Train draft models.", no_args_is_help=True)
app.command("data")(train_data.data)
app.command("decision")(train_decision.decision)
app.command("coverage")(train_coverage.coverage)
app.command("export-hf")(train_export.export_hf)
app.command("glide")(train_glide.glide)
app.command("ngrams")(train_ngrams.ngrams)


@app.callback()
def _group() -> None:
    """Train draft models."""
