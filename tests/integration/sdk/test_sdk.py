"""One surface, wherever the engines are: the laws of the SDK, embedded and over gRPC."""

from itertools import product

import pytest

from slipstream.client import (
    Client,
    FinishReason,
    Mode,
    SamplingParams,
    Shape,
    SpeculationOptions,
    TokenOrigin,
    Verification,
)
from slipstream.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    SessionBusy,
    SessionClosed,
    SessionNotFound,
    UnsupportedCombination,
)
from support.commands import ran_python

FORCED = SpeculationOptions(mode=Mode.FORCED)  # by no clock
SAMPLED = SamplingParams(temperature=1.0, seed=4)
PENALISED = SamplingParams(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, seed=5)


@pytest.fixture(scope="module")
def remote(router):
    with Client(router.address) as client:
        yield client


@pytest.fixture(params=["embedded", "remote"])
def client(request):
    return request.getfixturevalue(request.param)


def test_a_stream_adds_up_to_the_result(client):
    asked = {"max_tokens": 20, "with_origins": True, "logprobs": 2, "speculation": FORCED}
    result = client.generate("hello", **asked)
    chunks = list(client.stream("hello", **asked))
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == result.token_ids
    assert tuple(origin for chunk in chunks for origin in chunk.origins) == result.origins
    assert tuple(item for chunk in chunks for item in chunk.logprobs) == result.logprobs
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason is result.finish_reason is FinishReason.LENGTH
    assert chunks[-1].stats.num_output_tokens == len(result.token_ids)
    assert [chunk.prompt is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert chunks[0].prompt.num_prompt_tokens == result.prompt.num_prompt_tokens
    assert (result.prompt.model, result.prompt.seed) == ("tiny", 0)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED, PENALISED])
def test_the_place_of_the_engines_changes_no_token(embedded, remote, sampling):
    asked = {"max_tokens": 40, "sampling": sampling, "with_origins": True, "logprobs": 3}
    forced = asked | {"speculation": FORCED}
    ours, theirs = (client.generate("hello", **forced) for client in (embedded, remote))
    assert (ours.token_ids, ours.text) == (theirs.token_ids, theirs.text)
    assert ours.stats.speculation == theirs.stats.speculation
    assert ours.origins == theirs.origins
    plain = embedded.generate("hello", **asked, speculation=SpeculationOptions(mode=Mode.OFF))
    assert ours.logprobs == theirs.logprobs == plain.logprobs
    num_accepted = len(ours.token_ids) - ours.origins.count(TokenOrigin.TARGET)
    assert num_accepted == ours.stats.speculation.num_accepted_draft_tokens > 0


def test_a_session_remembers(client):
    with client.session() as session:
        first = session.generate("hello", max_tokens=12)
        second = session.generate("more", max_tokens=12)
    said = first.stats.num_prompt_tokens + first.stats.num_output_tokens
    assert second.stats.num_prompt_tokens > said
    assert said - 1 <= second.stats.num_cached_tokens <= said
    assert first.token_ids == client.generate("hello", max_tokens=12).token_ids


def test_a_session_that_is_left_open_goes_on_by_its_name(client, monkeypatch):
    begun = client.session()
    first = begun.generate("hello", max_tokens=5)
    with client.session(begun.session_id) as session:
        second = session.generate("more", max_tokens=5)
    assert second.stats.num_prompt_tokens > first.stats.num_prompt_tokens + 5
    monkeypatch.setattr("slipstream.client.session.PAUSES_S", (0.05,))
    with pytest.raises(SessionNotFound):
        begun.generate("again")


def test_a_session_that_was_never_begun_or_has_no_name_of_one_is_refused(client):
    with pytest.raises(SessionNotFound, match="no-such-session"):
        client.session("no-such-session").generate("hello")
    with pytest.raises(InvalidRequest, match="1 to 64 letters"):
        client.session("not a name")


def test_a_first_turn_that_is_refused_leaves_no_session(client):
    with client.session() as session:
        with pytest.raises(PromptTooLong):
            session.generate("x" * 120)
        assert session.generate("hello", max_tokens=5).token_ids


def test_a_second_turn_waits_for_the_first_to_be_read_or_left(client):
    with client.session() as session:
        stream = session.stream("hello", max_tokens=40)
        next(stream)
        with pytest.raises(SessionBusy):
            session.generate("at once")
        stream.close()
        assert list(stream) == []
        assert session.generate("later", max_tokens=3).token_ids


def test_a_session_can_be_closed_in_the_middle_of_a_turn(client):
    session = client.session()
    stream = session.stream("hello", max_tokens=40)
    next(stream)
    session.close()
    assert list(stream) == []
    with pytest.raises(SessionClosed, match=session.session_id):
        session.generate("more")


def test_what_can_be_refused_is_refused_before_a_stream_is_returned(client):
    content = {"role": "user", "content": 3}
    for prompt in ("", "  ", [], [999], [-1], [{"role": "user"}], [content], 7, b"x"):
        with pytest.raises(InvalidRequest):
            client.stream(prompt)
    with pytest.raises(PromptTooLong, match="context of 128"):
        client.stream("x" * 120, max_tokens=20)
    with pytest.raises(InvalidRequest, match="max_tokens is 0"):
        client.stream("hello", max_tokens=0)
    with pytest.raises(UnsupportedCombination, match="drafter glide is not here"):
        client.stream("hello", speculation=SpeculationOptions(drafter="glide"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_token": 5}, "no option max_token"),
        ({"stop": "end"}, "must be a list"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"request_id": "two\nlines"}, "request_id"),
        ({"model": "x" * 200}, "model"),
    ],
)
def test_an_option_that_is_none_is_refused(client, options, reason):
    with pytest.raises(InvalidRequest, match=reason):
        client.generate("hello", **options)


def test_another_model_is_not_found(client):
    assert client.generate("hello", max_tokens=2, model="tiny").prompt.model == "tiny"
    with pytest.raises(ModelNotFound, match="huge"):
        client.generate("hello", model="huge")
    with pytest.raises(ModelNotFound, match="huge"):
        client.tokenize("hello", model="huge")
    with pytest.raises(ModelNotFound, match="huge"):
        client.model_info("huge")


def test_a_request_that_takes_too_long_is_ended(client):
    # Whoever notices first says so: the client, or the router.
    with pytest.raises(DeadlineExceeded, match=r"longer than its 1e-06 s|deadline has passed"):
        client.generate("hello", max_tokens=50, timeout_s=1e-6)
    with client.session() as session, pytest.raises(DeadlineExceeded):
        list(session.stream("hello", max_tokens=50, timeout_s=1e-6))


def test_a_request_is_named_by_its_caller_or_at_random(client):
    assert client.generate("hello", max_tokens=2, request_id="mine").request_id == "mine"
    one, two = (client.generate("hello", max_tokens=2).request_id for _ in range(2))
    assert one != two
    assert len(one) == 32
    stream = client.stream("hello", max_tokens=2)
    assert next(stream).prompt.request_id == stream.request_id


def test_an_error_names_its_request(client):
    with pytest.raises(PromptTooLong) as refused:
        client.generate("x" * 200, request_id="too-long")
    assert refused.value.request_id == "too-long"
    assert refused.value.__notes__ == ["request_id too-long"]


def test_a_prompt_has_the_tokens_that_a_request_with_it_has(client):
    tokens = client.tokenize("hello")
    assert len(tokens) == client.generate("hello", max_tokens=1).prompt.num_prompt_tokens
    assert client.tokenize([{"role": "user", "content": "hello"}]) == tokens
    assert client.tokenize(tokens) == tokens
    raw = client.tokenize("hello", raw=True)
    assert len(raw) == len("hello")
    assert raw == tokens[1:6]
    with pytest.raises(InvalidRequest):
        client.tokenize("")


def test_what_a_model_says_it_can_do_is_all_that_it_does(client):
    info = client.model_info()
    assert client.models() == (info,)
    assert info.limits.context_length == 128
    rows = {row.verification: row for row in info.verifications}
    assert set(rows) == set(Verification)
    for drafter, row, shape in product(info.drafters, rows.values(), Shape):
        options = {
            "mode": Mode.FORCED,
            "verification": row.verification,
            "shape": shape,
            "widths": (2, 1) if shape is Shape.PRODUCT else None,
            "drafter": drafter.kind,
        }
        speculation = SpeculationOptions(**options)
        if drafter.kind in row.drafters and shape in set(row.shapes) & set(drafter.shapes):
            assert client.generate("hello", max_tokens=3, speculation=speculation).token_ids
        else:
            with pytest.raises(UnsupportedCombination):
                client.generate("hello", speculation=speculation)


@pytest.mark.parametrize("place", ["embedded", "remote"])
def test_a_closed_client_refuses_everything(folder, router, place):
    if place == "embedded":
        client = Client.embedded(str(folder), "none", dtype="float32")
    else:
        client = Client(router.address)
    session = client.session()
    client.close()
    for call in (
        lambda: client.generate("hello"),
        lambda: client.stream("hello"),
        lambda: client.tokenize("hello"),
        client.model_info,
        lambda: session.generate("hello"),
    ):
        with pytest.raises(SessionClosed, match="the client is closed"):
            call()
    session.close()
    client.close()


def test_only_a_router_describes_itself(embedded, remote):
    assert remote.server_info().protocol_version == 1
    with pytest.raises(InvalidRequest, match="in this process"):
        embedded.server_info()


def test_a_client_of_a_router_loads_nothing_that_computes(router):
    code = f"""
import sys
from slipstream.client import Client
with Client({router.address!r}) as client:
    assert client.generate("hello", max_tokens=3).token_ids
heavy = {{"torch", "numpy", "transformers", "tokenizers", "jinja2", "safetensors", "rich", "typer"}}
print(sorted(heavy & set(sys.modules)))
foreign = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
print(sorted(name for name in foreign if not name.startswith(("_", "grpc", "cython_runtime"))))
"""
    run = ran_python("-c", code)
    assert run.stdout.splitlines()[:2] == ["[]", "['google', 'slipstream', 'typing_extensions']"]
