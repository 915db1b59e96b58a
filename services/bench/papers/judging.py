"""Ways to hold figures against a claim; each gives a judge. Pure."""

from collections.abc import Callable

from slipstream.bench.papers.experiment import Judge, Outcome, Verdict
from slipstream.bench.papers.measured import Measured, NotMeasured
from slipstream.bench.serve.distributions import Interval

Holds = Callable[[Measured], tuple[bool, str]]


def verdict_of(judge: Judge, measured: Measured) -> Verdict:
    """The judge's word; what was not run can't be compared."""
    try:
        return judge(measured)
    except NotMeasured as error:
        return Verdict(Outcome.NOT_COMPARABLE, f"{_capital(str(error))}.")


def not_comparable(why: str) -> Judge:
    """For claims that nothing here can bear out or refute."""
    return lambda measured: Verdict(Outcome.NOT_COMPARABLE, why)


def holds(found: Holds) -> Judge:
    """Reproduced where what is `found` is true; it says why, too."""

    def judge(measured: Measured) -> Verdict:
        is_true, why = found(measured)
        return Verdict(Outcome.REPRODUCED if is_true else Outcome.NOT_REPRODUCED, why)

    return judge


def faster(subject: str, base: str, temperature: float, *, note: str = "") -> Judge:
    """Reproduced where all of the interval of subject over base is above 1."""

    def judge(measured: Measured) -> Verdict:
        found = measured.ratio(temperature, subject, base)
        if found is None:
            return Verdict(Outcome.NOT_COMPARABLE, "No output was long enough to be timed.")
        outcome = Outcome.REPRODUCED if found.low > 1 else Outcome.NOT_REPRODUCED
        doubt = "" if found.low > 1 or found.high < 1 else ", which is no clear difference"
        why = f"{_capital(subject)} runs at {ratio_text(found)} the speed of {base}{doubt}"
        why += _tail(note)
        return Verdict(outcome, why)

    return judge


def more(
    figure: str, subject: str, base: str, temperature: float, *, what: str, note: str = ""
) -> Judge:
    """Reproduced where a figure is larger, and by more than two standard errors output by output:
    no noise of the machine touches it, but the choice of prompts does."""

    def found(measured: Measured) -> tuple[bool, str]:
        ours = measured.arm(temperature, subject)[figure]
        theirs = measured.arm(temperature, base)[figure]
        if ours is None or theirs is None:
            raise NotMeasured(f"{what} can't be told where nothing is drafted")
        error = measured.difference(temperature, figure, subject, base)
        is_clear = error is None or error[0] > 2 * error[1]
        doubt = (
            ", which the choice of prompts may explain" if ours > theirs and not is_clear else ""
        )
        why = f"{_capital(what)}: {subject} {ours:.3f}, {base} {theirs:.3f}{doubt}{_tail(note)}"
        return ours > theirs and is_clear, why

    return holds(found)


def ratio_text(found: Interval) -> str:
    """A median and its interval."""
    return f"{found.median:.3f}x ({found.low:.3f} to {found.high:.3f})"


def _tail(note: str) -> str:
    return f"; {note}." if note else "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
