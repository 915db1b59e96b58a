"""The options that benchmarks share, and the facts that go with their figures."""

import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from slipstream.bench.harness import TurnPlan, check_writable
from slipstream.bench.methods import MethodEngines
from slipstream.bench.questions import Question, read_questions, select
from slipstream.cli.engine import fetch
from slipstream.cli.options import DEFAULT_TARGET, DraftFlags
from slipstream.cli.progress import bars
from slipstream.cli.up import StackFlags
from slipstream.client.engine import EngineOptions
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import EAGLE
from slipstream.files import write_json
from slipstream.models.dtypes import AUTO, FP8, Q8, choose_dtype
from slipstream.models.format.digests import file_digest, weights_digests
from slipstream.models.format.resolve import find_local, resolve
from slipstream.models.loaded import device_name, parse_device
from slipstream.models.machine import describe_machine, release
from slipstream.models.native.library import has_kernels, kernels
from slipstream.models.threads import num_threads
from slipstream.options import option, options_of
from slipstream.revision import code_revision

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class ModelFlags(DraftFlags):
    """Models, and where they run."""

    target: str = option(DEFAULT_TARGET, "Target: an alias, a path or OWNER/NAME of the hub.")
    draft: str = option("glide", "Draft of glide and best: glide, eagle3:HEAD or GliDe weights.")
    device: str = option("cpu", "cpu, cuda or cuda:N.")

    def check(self) -> None:
        """Raise `InvalidRequest` for a draft that reads no target."""
        is_named = self.draft == "glide" or self.draft.startswith(EAGLE)
        if not is_named and not Path(self.draft).expanduser().is_dir():
            raise InvalidRequest(
                f"the draft is {self.draft!r}, but must be glide, eagle3:HEAD or a directory of"
                " GliDe weights; other drafts are methods"
            )

    def engines(self, *others: str) -> MethodEngines:
        """Find these models and others by name, and load none yet."""
        with bars() as progress:
            fetch(self.target, self.draft, progress)
            for name in others:
                resolve(name, progress=progress)
        return MethodEngines(self.target, self.draft, self.options(), self.profile)

    def options(self) -> EngineOptions:
        # Methods share engines and get the same prompts: none may find what another has read.
        given = self.given().items()
        named = {name: value for name, value in given if name not in ("target", "draft", "profile")}
        return EngineOptions(**named, max_cached_bytes=0)

    def stack(self) -> StackFlags:
        values = asdict(self)
        return StackFlags(model=values.pop("target"), port=0, **values)

    def facts(self, *others: str) -> dict[str, Any]:
        """Return the machine, the target, and the digests of it and of other models by name."""
        chosen = choose_dtype(self.dtype or AUTO, parse_device(self.device), native=has_kernels())
        return {
            **machine_facts(self.device),
            "target": self.target,
            "dtype": self.dtype if self.dtype in (FP8, Q8) else chosen.name,
            **weights_facts(self.target, *others),
        }


@dataclass(frozen=True, slots=True)
class QuestionFlags:
    """The file of prompts, and which of them are sent."""

    prompts: Path | None = option(
        None, "JSON lines with question_id, category, turns; default: a small set."
    )
    limit: int | None = option(None, "Maximum number of prompts, evenly from all categories.")

    def path(self) -> Path:
        """Return the file, by default the one in the package."""
        if self.prompts is not None:
            return self.prompts
        return Path(str(resources.files("slipstream") / "data" / "prompts.jsonl"))

    def questions(self) -> tuple[Question, ...]:
        """Return the questions. Raises `InvalidRequest` for a bad file, line or choice."""
        return select(read_questions(self.path()), self.limit)

    def facts(self) -> dict[str, Any]:
        path = self.path()
        return {"prompts": path.name, "prompts_sha256": file_digest(path)}


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """File of the figures."""

    json: Path | None = option(None, "Also write all figures to this JSON file.")

    def __post_init__(self) -> None:
        if self.json is not None:
            check_writable(self.json)

    def write(self, values: dict[str, Any]) -> None:
        if self.json is not None:
            write_json(self.json, values)


def machine_facts(device: str) -> dict[str, Any]:
    """Return versions, machine, code and command line; `device` is where the models run."""
    machine = describe_machine(num_threads())
    return {
        **machine,
        "git_commit": code_revision(),
        "python": platform.python_version(),
        **{name: release(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": machine["processor"].split("\n")[0],
        "kernels": kernels() if has_kernels() else None,
        "num_processors": os.cpu_count(),
        "device": device_name(device),
        "command": shlex.join(["slipstream", *sys.argv[1:]]),
    }


def plan_facts(plan: TurnPlan) -> dict[str, Any]:
    """Return the options of a plan by name, and how many questions it has."""
    values = {option.name: option.value_in(plan) for option in options_of(type(plan))}
    return {**values, "num_prompts": len(plan.questions)}


def weights_facts(*names: str) -> dict[str, Any]:
    """Return the digests of models that are on this machine."""
    found = {name: weights_digests(find_local(name)) for name in dict.fromkeys(names)}
    return {"weights_sha256": found}
