"""The options that say which processes of which machines train. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.train.launch import Work

_MACHINE = "Machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamFlags:
    """What computes."""

    device: Annotated[str, Option(help="cpu, cuda or cuda:N.", rich_help_panel=_MACHINE)] = "cpu"
    precision: Annotated[
        str, Option(help="Of products: bfloat16 or float32.", rich_help_panel=_MACHINE)
    ] = "bfloat16"
    threads: Annotated[
        int | None,
        Option(
            help="CPU threads of each process.",
            min=1,
            show_default="torch's choice",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    nproc: Annotated[
        int,
        Option(
            help="Processes on this machine, with --device cuda one for each GPU; under torchrun, "
            "leave it at 1.",
            min=1,
            rich_help_panel=_MACHINE,
        ),
    ] = 1
    ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Train in Ray workers, with --device cuda one for each GPU.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    ray_workers: Annotated[
        int | None, Option(help="How many of them.", min=1, rich_help_panel=_MACHINE)
    ] = None

    def start(self, work: "Work", directory: Path) -> None:
        """Have `work` done by all of them; Ray keeps its records below `directory`."""
        from slipstream.train.launch import run_team
        from slipstream.train.ray_team import run_ray_team

        if self.ray_workers is not None and not self.ray:
            raise TrainingError("--ray-workers needs --ray")
        if not self.ray:
            run_team(work, device=self.device, num_processes=self.nproc)
            return
        if self.nproc > 1 or self.device not in ("cpu", "cuda"):
            raise TrainingError("Ray places its workers itself: drop --nproc and GPU numbers")
        num_workers, has_gpus = self.ray_workers or 1, self.device == "cuda"
        place = directory / "ray"
        run_ray_team(work, num_workers=num_workers, has_gpus=has_gpus, directory=place)
