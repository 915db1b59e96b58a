"""Every error a caller can meet, as one tree.

SlipstreamError
├── InvalidRequest        a parameter, prompt or combination that can't be honoured
│   ├── UnsupportedCombination   each part is fine, together they are not
│   └── PromptTooLong     the prompt leaves no room in the context
├── ModelError            a model that can't be found, loaded or used
│   ├── ModelNotFound     no such alias, path, hub id or package
│   ├── ModelMismatch     draft and target do not belong together
│   └── WeightsError      a weights file that is broken or of another shape
├── SessionError          the two sides disagree about a session
│   ├── SessionOutOfSync  a delta that starts above what the engine holds
│   ├── SessionBusy       a second request while one is running
│   └── SessionClosed     a session that was closed or never opened
├── CapacityError         memory or rows that are not there
└── TrainingError         data or settings that can't be trained with

Messages are one sentence: what is wrong, the value, the limit.
"""


class SlipstreamError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidRequest(SlipstreamError, ValueError):
    """A parameter, prompt or combination that can't be honoured."""


class UnsupportedCombination(InvalidRequest):
    """Each option is fine on its own, together they are not."""


class PromptTooLong(InvalidRequest):
    """The prompt, or the prompt and what may follow, exceeds the context."""


class ModelError(SlipstreamError):
    """A model that can't be found, loaded or used."""


class ModelNotFound(ModelError):
    """No such alias, path, hub id or package."""


class ModelMismatch(ModelError):
    """Draft and target do not belong together."""


class WeightsError(ModelError):
    """A weights file that is broken or of another shape."""


class SessionError(SlipstreamError):
    """The two sides disagree about a session."""


class SessionOutOfSync(SessionError):
    """A delta starts above the tokens that the engine holds."""


class SessionBusy(SessionError):
    """A second request while one is running on the session."""


class SessionClosed(SessionError):
    """The session was closed, or never opened."""


class CapacityError(SlipstreamError):
    """Memory or rows that are not there."""


class TrainingError(SlipstreamError):
    """Data or settings that can't be trained with."""
