"""docs/reference/errors.md: every error, below what it is a kind of, with its status."""

from collections.abc import Iterator

from reference.tables import cell, code, table
from slipstream.core import errors
from slipstream.core.errors import SlipstreamError
from slipstream.rpc.status import code_of, reason_of

INTRODUCTION = """\
# Errors

Every error of `slipstream.core.errors`, which the SDK has as `slipstream.client.errors`. An error
has the same class and the same sentence in one process and across the wire: a status carries the
sentence, and the reason in a `google.rpc.ErrorInfo` of the domain `slipstream`. `CapacityError` and
what is below it come with `grpc-retry-pushback-ms`. The [SDK's page](../sdk.md#errors) and that of
the [services](../services.md#how-the-wire-works) say when which one comes.
"""


def page() -> str:
    heads = ("Error", "A kind of", "gRPC status", "Reason", "Meaning")
    return "\n".join([INTRODUCTION, table(heads, rows(SlipstreamError))])


def rows(kind: type[SlipstreamError]) -> Iterator[tuple[str, ...]]:
    parent = kind.__mro__[1]
    sample = kind("")
    yield (
        code(kind.__name__),
        code(parent.__name__),
        code(code_of(sample).name),
        code(reason_of(sample)),
        cell(kind.__doc__ or ""),
    )
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from rows(child)
