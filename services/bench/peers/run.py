"""Runs of all configurations over the same prompts, in turn.

A configuration that can't run, or fails, is left out with the reason.
"""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.harness import WARMUP_TOKENS, Advance, rotated
from slipstream.bench.peers.engine import EngineAnswer, EngineProcess
from slipstream.bench.peers.plan import Configuration, Level, PeersPlan, PromptIds
from slipstream.bench.peers.settings import NotAvailable, PeersOptions, engine_settings
from slipstream.core.errors import SlipstreamError


@dataclass(frozen=True, slots=True)
class BatchSample:
    """Batch of requests, answered in one configuration.

    `others_cpu_s` is the processor time meanwhile of all engines that ought to be idle.
    """

    config: str
    concurrency: int
    batch: int
    """Number within its level: every configuration has the same batches."""
    prompts: tuple[PromptIds, ...]
    wall_s: float
    answers: tuple[EngineAnswer, ...]
    others_cpu_s: float

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all answers."""
        return sum(answer.num_tokens for answer in self.answers)


@dataclass(slots=True)
class PeersRecord:
    """Results so far: a run that is interrupted leaves what it has."""

    samples: list[BatchSample] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons by configuration; names as `named`."""
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts and memory of engines by configuration; names as `named`."""
    is_whole: bool = False
    """True once everything was measured that could be."""

    def skip(self, config: str, concurrency: int, reason: str) -> None:
        """Note why a configuration is left out; once where it is the same at every concurrency."""
        if self.skipped.get(config) != reason:
            self.skipped[named(config, concurrency)] = reason


def named(config: str, concurrency: int) -> str:
    """Return a configuration at one level in words."""
    return config if concurrency == 1 else f"{config} at concurrency {concurrency}"


def run_peers(
    plan: PeersPlan, options: PeersOptions, record: PeersRecord, *, advance: Advance
) -> None:
    """Measure all levels, one after the other, into `record`. Raises only what ends everything."""
    for level in plan.levels:
        with ExitStack() as opened:
            run = _LevelRun(plan, level, record)
            run.start(options, opened)
            for _ in range(plan.warmup):
                run.answer(level.batches[0], None, advance)
            for number, batch in enumerate(level.batches):
                run.answer(batch, number, advance)
            run.note_memory()
    record.is_whole = True


class _LevelRun:
    """Run of one level: its engines, and what they answer."""

    def __init__(self, plan: PeersPlan, level: Level, record: PeersRecord) -> None:
        self._plan, self._level, self._record = plan, level, record
        self._engines: dict[str, EngineProcess] = {}
        """Engines by configuration; configurations of ours may share one."""

    def start(self, options: PeersOptions, opened: ExitStack) -> None:
        """Start the engines, which run until `opened` closes."""
        groups: dict[str, tuple[dict[str, Any], list[Configuration]]] = {}
        is_concurrent = self._level.concurrency > 1
        for config in self._level.configs:
            try:
                settings = engine_settings(config, options, is_concurrent=is_concurrent)
            except NotAvailable as error:
                self._skip(config, str(error))
                continue
            key = json.dumps(settings) if config.is_ours else config.name
            groups.setdefault(key, (dict(settings), []))[1].append(config)
        for settings, configs in groups.values():
            self._start(settings, configs, opened)

    def answer(self, batch: Sequence[PromptIds], number: int | None, advance: Advance) -> None:
        """Have every configuration answer a batch, shortly and unmeasured without a number."""
        most = self._plan.max_new_tokens
        most = most if number is not None else min(most, WARMUP_TOKENS)
        for config in rotated(self._running(), number or 0):
            time.sleep(self._plan.settle_s)
            try:
                sample = self._sample(config.name, number or 0, batch, most)
            except SlipstreamError as error:
                self._skip(config, f"it failed: {error}")
                del self._engines[config.name]
            else:
                if number is not None:
                    self._record.samples.append(sample)
            advance(config.name)

    def note_memory(self) -> None:
        """Note what the engines have taken."""
        for config in self._running():
            engine = self._engines[config.name]
            self._record.engines[named(config.name, self._level.concurrency)] = {
                "peak_bytes": engine.peak_bytes(),
                "num_processes": len(engine.facts.pids),
                "arms": [name for name, other in self._engines.items() if other is engine],
                "versions": dict(engine.facts.versions),
                "settings": dict(engine.facts.settings),
            }

    def _running(self) -> list[Configuration]:
        return [config for config in self._level.configs if config.name in self._engines]

    def _sample(
        self, config: str, number: int, batch: Sequence[PromptIds], max_new_tokens: int
    ) -> BatchSample:
        engine = self._engines[config]
        before_s = self._idle_cpu_s(engine)
        reply = engine.send(config, [prompt.token_ids for prompt in batch], max_new_tokens)
        idle_s = self._idle_cpu_s(engine) - before_s
        at = self._level.concurrency
        return BatchSample(config, at, number, tuple(batch), reply.wall_s, reply.answers, idle_s)

    def _idle_cpu_s(self, engine: EngineProcess) -> float:
        """Return the processor seconds so far of all engines but one."""
        others = {id(other): other for other in self._engines.values() if other is not engine}
        return sum(other.cpu_s() for other in others.values())

    def _start(
        self, settings: dict[str, Any], configs: list[Configuration], opened: ExitStack
    ) -> None:
        methods = {at.name: at.method.name for at in configs if at.method is not None}
        try:
            engine = EngineProcess(settings | {"methods": methods})
        except SlipstreamError as error:
            for config in configs:
                self._skip(config, f"it did not start: {error}")
            return
        opened.callback(engine.close)
        for config in configs:
            try:
                engine.load(config.name)
            except SlipstreamError as error:
                self._skip(config, str(error))
            else:
                self._engines[config.name] = engine

    def _skip(self, config: Configuration, reason: str) -> None:
        self._record.skip(config.name, self._level.concurrency, reason)
