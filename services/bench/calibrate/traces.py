"""Chains that a draft proposes after every token of a reply. Values only."""

from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Guess:
    """One slot of a drafted chain: candidates, the best first, and what the draft knew of it.

    `probs` are the candidates' own, `top_prob` and `entropy` (nats) those of the draft's law at
    temperature 1; `score` is the decision model's, None without one.
    """

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.probs):
            raise InvalidRequest(
                f"a guess has {len(self.tokens)} candidates and {len(self.probs)} probabilities"
            )


@dataclass(frozen=True, slots=True)
class Trace:
    """A finished reply, and a chain drafted behind each of its tokens but the last.

    `chains[i]` continues `tokens[: i + 1]`, each slot after the best candidates of those before,
    whatever the reply says there. It is as deep as was recorded, and ends early where nothing
    could follow. Prompt and stop tokens are there for those who copy from what was said.
    """

    tokens: tuple[int, ...]
    chains: tuple[tuple[Guess, ...], ...]
    temperature: float
    max_tokens: int
    prompt: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.chains) != len(self.tokens) - 1:
            raise InvalidRequest(
                f"a reply of {len(self.tokens)} tokens has {len(self.chains)} chains"
            )

    def reached(self, start: int) -> tuple[tuple[Guess, int], ...]:
        """The slots of `chains[start]` up to the first that is wrong, with the reply's tokens.

        Behind a wrong one nobody knows what the target would have said.
        """
        pairs = zip(self.chains[start], self.tokens[start + 1 :], strict=False)
        known = []
        for guess, token in pairs:
            known.append((guess, token))
            if guess.tokens[0] != token:
                break
        return tuple(known)
