"""A short run of the fuzzer of files, and all files that it has kept; `make fuzz-files` runs it
for longer."""

import pytest

from fuzz.case import load
from fuzz.files.child import FAULT, LOADED, REFUSED
from fuzz.files.kinds import kinds_of
from fuzz.files.runner import CRASH, KEPT, SLOW, Limits, Runner

SEED, NUM_CASES = 50, 30
LIMITS = Limits(memory=256 << 20, cpu_s=0.5)


FAULTS = {
    "ends its process": (CRASH, "exit code -6"),
    "raises": (FAULT, "KeyError"),
    "takes memory": (FAULT, "MemoryError"),
    "has no end": (SLOW, "more than 0.5 s of CPU"),
    "refuses without a word": (FAULT, "no sentence"),
}


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_of_a_file_is_found_made_smaller_and_ends_nothing_else(name, tmp_path):
    runner = Runner(["fuzz.files.broken_kinds"], LIMITS, tmp_path)
    outcome, fault = FAULTS[name]
    try:
        await runner.run(name, seed=0, first=0, end=3)
        (found,) = runner.tally.findings.values()
        assert 2 <= found.count == runner.tally.outcomes[name][outcome]
        assert fault in found.what
        await runner.minimise()
        (kept,) = tmp_path.glob("*/*.json")
        (case,) = load(kept)
        if outcome != SLOW:
            assert len(case.parts[0]) < 8 and runner.load(case)[0] == outcome
    finally:
        runner.close()


@pytest.mark.parametrize("name", sorted(kinds_of()))
async def test_a_broken_file_loads_or_is_refused_in_one_sentence(runner, name):
    await runner.run(name, SEED, 0, NUM_CASES)
    assert [what for what in runner.tally.findings if what.startswith(f"{name}:")] == []
    assert set(runner.tally.outcomes[name]) <= {LOADED, REFUSED}


@pytest.mark.parametrize(
    "path", sorted(KEPT.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_files_that_were_kept_show_no_fault(runner, path):
    for case in load(path):
        outcome, fault = runner.load(case)
        assert outcome in (LOADED, REFUSED), fault
