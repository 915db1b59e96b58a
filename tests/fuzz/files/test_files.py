"""A short run of the fuzzer of files, and all files that it has kept; `make fuzz-files` runs it
for longer."""

import pytest

from fuzz.case import load
from fuzz.files.child import LOADED, REFUSED
from fuzz.files.kinds import kinds_by_name
from fuzz.files.runner import KEPT, Runner

SEED, NUM_CASES = 50, 30


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", sorted(kinds_by_name()))
def test_a_broken_file_loads_or_is_refused_in_one_sentence(runner, name):
    runner.run(name, SEED, 0, NUM_CASES)
    assert [what for what in runner.tally.findings if what.startswith(f"{name}:")] == []
    assert set(runner.tally.outcomes[name]) <= {LOADED, REFUSED}


@pytest.mark.parametrize(
    "path", sorted(KEPT.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_files_that_were_kept_show_no_fault(runner, path):
    for case in load(path):
        outcome, fault = runner.load(case)
        assert outcome in (LOADED, REFUSED), fault
