"""Proposals of a draft before anything is served, to measure the time of a draft step here."""

import time
from collections.abc import Sequence

import numpy as np

from slipstream.core.inline import finished
from slipstream.core.round import Clock
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session, StopPolicy
from slipstream.drafting.engine import KvSource, LocalDraft, TargetKv
from slipstream.models.kv.pool import KvLayout
from slipstream.models.machine import this_machine
from slipstream.models.scorer import Chains, KvView, Scorer

_PROMPT = 96
_DEPTH = 4
_ROUNDS = 4
_NUM_PAGES = 4


class _Zeros(KvSource):
    def __init__(self, layout: KvLayout) -> None:
        size = (2 * layout.num_kv_heads, _PROMPT + _ROUNDS, layout.head_dim)
        self._buffer = np.zeros(size, layout.dtype)

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        return KvView(_PROMPT - 1, dict.fromkeys(layers, self._buffer))


def step_seconds(
    scorer: Scorer,
    layers: Sequence[int],
    chains: Chains | None,
    *,
    name: str,
    clock: Clock = time.perf_counter,
) -> float | None:
    """Return the seconds of a draft step of one session, everything around it included.

    The measurement of an earlier start under this `name` is used again. None on a device other than
    the CPU, which computes whole chains at once: routers learn its times from the first proposals.
    """
    if scorer.layout.device != "cpu":
        return None
    seconds: float = this_machine().recall(
        f"step of a draft's chain, {name}",
        lambda: _measured(scorer, layers, chains, clock),
        is_valid=lambda value: isinstance(value, float) and 0 < value < 60,
    )
    return seconds


def _measured(scorer: Scorer, layers: Sequence[int], chains: Chains | None, clock: Clock) -> float:
    read = scorer.mirrored
    target_kv = None if read is None else TargetKv(_Zeros(read), tuple(layers))
    draft = LocalDraft(scorer, target_kv, pool=scorer.pool(_NUM_PAGES), chains=chains)
    session = Session("trial", _PROMPT, _ROUNDS)
    plan = Plan(_DEPTH, _DEPTH, stop=StopPolicy.FIXED)
    sequence = TokenSequence(session, (index % 7 for index in range(_PROMPT)))
    finished(draft.propose(sequence, plan))
    taken = []
    for _ in range(_ROUNDS):
        sequence.append((1,))
        start = clock()
        finished(draft.propose(sequence, plan))
        taken.append(clock() - start)
    finished(draft.release(session.session_id))
    return max(min(taken), 1e-9) / _DEPTH
