"""The client: generate, stream, converse. Where the engines live is decided when it is made."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from slipstream.client.prompts import Prompt
from slipstream.core.options import SpeculationOptions
from slipstream.core.request import DEFAULT_MAX_TOKENS, Ask
from slipstream.core.results import Chunk, Result, collected
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.client.embedded import Conversation, Embedded


class RequestOptions(TypedDict, total=False):
    """What a request may say beside its prompt; what is left out takes the default."""

    sampling: SamplingParams
    """The law to sample from; greedy by default."""
    max_tokens: int
    """Limit on new tokens, 256 by default."""
    stop: Sequence[str]
    """Strings that end the text, and are not part of it."""
    speculation: SpeculationOptions
    """How to speculate; by default as calibrated, while it pays."""
    raw: bool
    """Take a text prompt as it is, not as a user's message."""


class Client:
    """Generates text with a draft and a target. Use `Client.embedded(...)`."""

    def __init__(self, backend: "Embedded") -> None:
        self._backend = backend

    @classmethod
    def embedded(
        cls,
        target: str = "smollm2-135m",
        draft: str = "glide",
        *,
        dtype: str = "bfloat16",
        numerics: str = "invariant",
        threads: int | None = None,
        device: str = "cpu",
    ) -> Self:
        """Both engines in this process.

        `target` is an alias, path or hub id; `draft` is glide, ngram, none, vanilla:MODEL or a
        directory of GliDe weights. Raises `ModelError` or `InvalidRequest`.
        """
        from slipstream.client.embedded import Embedded
        from slipstream.client.engine import EngineOptions

        options = EngineOptions(dtype, numerics, threads, device)  # type: ignore[arg-type]
        return cls(Embedded.load(target, draft, options))

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run one request to its end. See `stream`."""
        with self.session() as session:
            return session.generate(prompt, **options)

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Iterator[Chunk]:
        """Chunks of text as they become final.

        `prompt` is text (a user message; as it is when `raw`), messages, or token ids. Greedy
        by default. Raises `InvalidRequest` before anything is generated.
        """
        session = self.session()
        try:
            chunks = session.stream(prompt, **options)
        except BaseException:
            session.close()
            raise
        return _closing(session, chunks)

    def session(self) -> "ClientSession":
        """A conversation: each request goes on from the ones before, and their caches stay."""
        return ClientSession(self._backend.conversation())

    def close(self) -> None:
        """Refuse requests from now on."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ClientSession:
    """Turns of one conversation. Close it, or use it as a context, to free its caches."""

    def __init__(self, conversation: "Conversation") -> None:
        self._conversation = conversation

    @property
    def session_id(self) -> str:
        """The conversation's name in the engines."""
        return self._conversation.session_id

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run the next turn to its end."""
        return collected(self.stream(prompt, **options))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Iterator[Chunk]:
        """The next turn, chunk by chunk. A turn that is not read to its end ends there."""
        return self._conversation.turn(prompt, _ask(options))

    def close(self) -> None:
        """Free the session's caches."""
        self._conversation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _ask(options: RequestOptions) -> Ask:
    return Ask(
        options.get("sampling", SamplingParams()),
        options.get("max_tokens", DEFAULT_MAX_TOKENS),
        tuple(options.get("stop", ())),
        options.get("speculation", SpeculationOptions()),
        options.get("raw", False),
    )


def _closing(session: ClientSession, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    with session:
        yield from chunks
