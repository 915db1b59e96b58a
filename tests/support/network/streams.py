"""The outcomes of streams and of other calls, and the worker that they run on."""

import grpc


def tokens_of(chunks):
    return tuple(token for chunk in chunks for token in chunk.token_ids)


def logprobs_of(chunks):
    return tuple(item for chunk in chunks for item in chunk.logprobs)


def text_of(chunks):
    return "".join(chunk.text for chunk in chunks)


async def read(stream, num_tokens=None):
    """Chunks of a stream, to its end or until they have so many tokens."""
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if num_tokens is not None and len(tokens_of(chunks)) >= num_tokens:
            break
    return chunks


async def refusal(asked):
    """The status that a call ends with."""
    try:
        await asked
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("nothing was refused")


async def busy(workers):
    """The worker that runs most requests."""
    loads = [(await worker.load()).num_sessions for worker in workers]
    assert any(loads), "no worker runs a request"
    return workers[loads.index(max(loads))]
