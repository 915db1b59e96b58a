"""How a run went, as pictures beside its checkpoint. Knows nothing of training."""

from pathlib import Path
from typing import Any

from slipstream.plots import save_plot
from slipstream.train.checkpoint import RunState


def draw_curves(directory: Path, state: RunState) -> None:
    """Write loss.png and acceptance.png: the loss, and what chains survive on held-out text."""

    def loss(axes: Any) -> None:
        axes.plot([at["step"] for at in state.losses], [at["loss"] for at in state.losses])

    def acceptance(axes: Any) -> None:
        steps = [at["step"] for at in state.history]
        depths = [key for key in state.history[0] if key.startswith("depth_")] if steps else []
        for number, key in enumerate(depths, start=1):
            rates = [at[key] for at in state.history]
            axes.plot(steps, rates, marker=".", label=f"{number} accepted")

    save_plot(directory / "loss.png", loss, title="Training loss", x="step", y="loss")
    save_plot(
        directory / "acceptance.png",
        acceptance,
        title="Held-out chains that get so far",
        x="step",
        y="share of chains",
    )
