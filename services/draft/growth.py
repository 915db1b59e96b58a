"""One round's drafting: scores of the nodes grown so far, read slot by slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from slipstream.core.planner import Profile
from slipstream.core.stop import StopSignal
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Session, SparseLaw, Verification
from slipstream.draft.slots import Slot, SlotReader
from slipstream.models.scorer import Scorer, Scores


@dataclass(frozen=True, slots=True)
class Prefix:
    """The session's tokens as the draft model holds them, and its scores of what follows.

    `staleness` is by how many of them the target's keys lag behind.
    """

    scorer: Scorer
    state: Any
    num_tokens: int
    first: Scores
    staleness: int = 0


class Growth:
    """A tree in the making behind a session's tokens.

    `max_depth` is the depth that staleness leaves of the largest lag the draft was trained for.
    """

    def __init__(
        self,
        session: Session,
        prefix: Prefix,
        *,
        reader: SlotReader,
        profile: Profile,
        max_depth: int,
    ) -> None:
        self.session = session
        self.max_depth = max_depth
        self._prefix = prefix
        self._reader = reader
        self.cape_table = profile.cape_table
        self.row_cost = profile.row_cost
        self._calibration = profile.calibration_at(session.sampling.temperature)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {
            ROOT: (prefix.first.logits[0], prefix.first.hidden[0])
        }
        self._depths: list[int] = []

    def extend(self, tokens: Sequence[int], parents: Sequence[int]) -> range:
        """Score the slots below new nodes; their indices continue those grown before."""
        scores = self._prefix.scorer.grow(self._prefix.state, tokens, parents)
        start = len(self._depths)
        for row, parent in enumerate(parents):
            self._rows[start + row] = (scores.logits[row], scores.hidden[row])
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
        return range(start, len(self._depths))

    def read(self, node: int, count: int) -> Slot:
        """The slot below a grown node (`ROOT`: the first one), with up to `count` candidates."""
        depth = 0 if node == ROOT else self._depths[node]
        position, lag = self._prefix.num_tokens + depth, self._prefix.staleness + depth
        return self._reader.read(self._rows[node], position=position, lag=lag, count=count)

    def ends_with(self, token: int) -> bool:
        """Whether nothing can follow `token`."""
        return token in self.session.stop_token_ids

    def acceptance(self, slot: Slot) -> float:
        """Estimated chance that the target keeps the slot's first candidate."""
        if slot.score is not None:
            return slot.score
        return self._calibration.probability(slot.top_prob)

    def signal(self, slot: Slot, depth: int, path_prob: float) -> StopSignal:
        """What a stop policy looks at after a token of `slot` was appended at `depth`."""
        return StopSignal(depth, slot.top_prob, slot.entropy, slot.score, path_prob)

    def laws(
        self, tree: TokenTree, laws: Mapping[int, SparseLaw | None]
    ) -> tuple[SparseLaw | None, ...]:
        """`Proposal.laws` out of the law per parent; empty where candidates are no draws."""
        if self.session.verification is Verification.EXACT:
            return ()
        return tuple(laws.get(node) for node in range(ROOT, len(tree)))
