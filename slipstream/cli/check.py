"""`slipstream check`: one short generation through a router, as after an installation.

`helm test` runs it. Loads no model and measures nothing.
"""

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass

import typer

from slipstream.cli.engine import remote_options
from slipstream.cli.flags import with_flags
from slipstream.cli.options import RouterFlags
from slipstream.client import Client
from slipstream.core.errors import (
    InvalidRequest,
    ModelNotFound,
    ServiceError,
    UnsupportedCombination,
    refused_as,
)
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.server_info import ReplicaRole, ReplicaState, ServerInfo
from slipstream.options import Bounded, option

# Repeats itself, so that any draft, also one that copies the text, has accepted tokens.
PROMPT = "one two three four five six one two three four five six one two three four"
NUM_TOKENS = 48
PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class CheckFlags(Bounded):
    """Connection and decoding options, and the time to try for."""

    no_speculation: bool = option(False, "Decode plainly, without a draft.")
    plaintext: bool = option(False, "Send the token without TLS, also to other machines.")
    timeout_s: float = option(60.0, "Seconds for an answer, the wait for a target included.")
    wait_s: float = option(
        0.0,
        "Seconds to repeat the check until it succeeds, as while services start.",
        least=0,
        most=3600,
    )


@with_flags
def check(router: RouterFlags, flags: CheckFlags) -> None:
    """Generate a few tokens through a router, and show the result and the ready replicas.

    Exit code 0 if all is well.
    """
    if router.router is None:
        raise InvalidRequest("there is nothing to check: name a router, --router HOST:PORT")
    options = remote_options(router)
    if flags.plaintext:
        if options["tls"] is not None:
            raise UnsupportedCombination("--plaintext and TLS exclude each other")
        options["tls"] = False
    with closing(Client(router.router, timeout_s=flags.timeout_s, **options)) as client:
        typer.echo(_checked(client, router.router, flags))
        for line in replica_lines(client.server_info()):
            typer.echo(line)


def _checked(client: Client, router: str, flags: CheckFlags) -> str:
    end = time.monotonic() + flags.wait_s
    while True:
        try:
            return _verdict(client, router, is_plain=flags.no_speculation)
        except (ModelNotFound, ServiceError):
            if time.monotonic() + PAUSE_S > end:
                raise
        time.sleep(PAUSE_S)


def _verdict(client: Client, router: str, *, is_plain: bool) -> str:
    """Generate a few tokens, and return a sentence about them.

    Raises `ServiceError` for an answer without tokens or, unless decoding is plain, without
    accepted draft tokens.
    """
    # Drafting is forced: on an idle machine it may not pay.
    speculation = SpeculationOptions(mode=Mode.OFF if is_plain else Mode.FORCED)
    # The request is ours, so the fault is the router's.
    with refused_as(f"{router} refuses to be checked:", ServiceError):
        result = client.generate(PROMPT, raw=True, max_tokens=NUM_TOKENS, speculation=speculation)
    came = f"{router} answers with {result.stats.num_output_tokens} tokens of {result.prompt.model}"
    if not result.stats.num_output_tokens:
        raise ServiceError(f"{came}, but some were asked for")
    if is_plain:
        return f"{came}, decoded plainly"
    found = result.stats.speculation
    if found.num_accepted_draft_tokens:
        return (
            f"{came}, {found.num_accepted_draft_tokens} of them drafted"
            f" (mean acceptance length {found.mean_acceptance_length:.2f})"
        )
    missing = f"none of {found.num_draft_tokens} drafted tokens was accepted"
    if not found.num_draft_tokens:
        reasons = ", ".join(sorted(found.fallbacks))
        missing = "nothing was drafted" + (f" ({reasons})" if reasons else "")
    raise ServiceError(f"{came}, but {missing}")


def replica_lines(info: ServerInfo) -> list[str]:
    """Return a line for each kind of ready replica: model, dtype, what computes it, how many."""
    kinds = Counter(
        (one.role is ReplicaRole.DRAFT, one.role.value, one.model, one.dtype, one.engine)
        for one in info.replicas
        if one.state is ReplicaState.READY
    )
    return [
        f"{role} {model}{dtype and f' in {dtype}'}{engine and f' by {engine}'}, {count} ready"
        for (_, role, model, dtype, engine), count in sorted(kinds.items())
    ]
