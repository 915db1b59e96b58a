"""What a calibration has found, and the file that it becomes. Computes and prints nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.calibrate.run import Recorded
from slipstream.bench.calibrate.sweep import Tried
from slipstream.bench.calibrate.timed import Timed
from slipstream.draft.profile_file import Pair, profile_file


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`timed` are the finalists, the fastest first; `measured` are costs in milliseconds."""

    pair: Pair
    timed: Sequence[Timed]
    tried: Sequence[Tried]
    recorded: Recorded
    measured: Mapping[str, Any]
    num_timed_prompts: int

    @property
    def best(self) -> Timed:
        """What is chosen."""
        return self.timed[0]

    def file(
        self, command: str, machine: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The profile file. `facts` are more of what to note."""
        measured = {
            **facts,
            "num_replies": self.recorded.num_replies,
            "num_tokens": self.recorded.num_tokens,
            "num_timed_prompts": self.num_timed_prompts,
            "chosen": self.best.name,
            "greedy": dict(self.best.greedy),
            "sampled": dict(self.best.sampled),
            "costs": dict(self.measured),
        }
        facts_of_machine = dict(machine)
        notes = {
            "command": command,
            "revision": facts_of_machine.pop("git_commit", None),
            "machine": facts_of_machine,
            "measured": measured,
        }
        return profile_file(self.best.profile, self.pair, notes)
