"""A proposal under way: the session's grower, the step it waits for, and what became of it."""

from slipstream.core.types import Proposal
from slipstream.draft.growth import Growing, Step
from slipstream.draft.slots import Slot


class Drafting:
    """One `propose`, taken a step at a time by its caller.

    It is done when there is a proposal or an error.
    """

    def __init__(self, session_id: str, grower: Growing[Proposal]) -> None:
        """Goes up to the first step, of which there may be none. Raises nothing."""
        self.session_id = session_id
        self.step: Step | None = None
        self.proposal: Proposal | None = None
        self.error: Exception | None = None
        self._grower = grower
        self._advance(None)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.step is None

    @property
    def num_tokens(self) -> int:
        """Tokens that the next step computes, at most."""
        return 0 if self.step is None else self.step.num_tokens

    def take(self, slots: list[Slot] | Exception) -> None:
        """Go on with what the step was to find, or end with what became of it."""
        if isinstance(slots, Exception):
            self.fail(slots)
        else:
            self._advance(slots)

    def fail(self, error: Exception) -> None:
        """End without a proposal. Of one that is done nothing changes."""
        if not self.is_done:
            self.step, self.error = None, error
            self._grower.close()

    def result(self) -> Proposal:
        """The proposal. Raises what the drafting has failed with."""
        if self.error is not None:
            raise self.error
        assert self.proposal is not None, "only what is done has a result"
        return self.proposal

    def _advance(self, slots: list[Slot] | None) -> None:
        self.step = None
        try:
            # Sending None is how a generator begins.
            self.step = self._grower.send(slots)  # type: ignore[arg-type]
        except StopIteration as done:
            self.proposal = done.value
        except Exception as error:
            self.error = error
