"""Requests survive the wire: what went in comes out, and nothing else gets in."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.request import MODEL_DEFAULTS, Ask, Generation, SessionRef
from slipstream.core.request.tools import Tool
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import SamplingParams, Shape, StopPolicy, Verification
from slipstream.rpc.conversion import convert_generation as asked
from slipstream.rpc.v1 import common_pb2
from slipstream.rpc.v1 import generation_pb2 as pb

RAW = PromptForm(raw=True)
IDS = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ASKED_KINDS = (GrammarKind.JSON_SCHEMA, GrammarKind.REGEX)
SAID = TEXT.filter(bool)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


def maybe(values):
    return st.none() | values


SAMPLING = st.builds(
    SamplingParams,
    temperature=st.just(0.0) | st.floats(1e-30, 100),
    top_k=maybe(st.integers(1, 2**32 - 1)),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(IDS, st.floats(-100, 100), max_size=4).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    seed=st.integers(0, 2**64 - 1),
)
DEPTH = maybe(st.integers(1, MAX_DRAFT_TOKENS))
NODES = maybe(st.integers(1, MAX_NODES))
STOPS = st.sampled_from([(None, None), *((stop, None) for stop in StopPolicy if stop != "cost")])
STOPS |= st.tuples(
    st.sampled_from([StopPolicy.SVIP, StopPolicy.DECISION, StopPolicy.COST]), st.floats(0.1, 0.9)
)
DRAFTERS = maybe(st.sampled_from(["glide", "vanilla", "ngram"]))
VERIFICATIONS = maybe(st.sampled_from(Verification))


@st.composite
def speculating(draw):
    verification = draw(VERIFICATIONS)
    is_product = draw(st.booleans())
    shapes = maybe(st.sampled_from([shape for shape in Shape if shape is not Shape.PRODUCT]))
    stop, threshold = draw(STOPS)
    return SpeculationOptions(
        mode=draw(st.sampled_from([Mode.AUTO, Mode.FORCED])),
        max_draft_tokens=draw(DEPTH.filter(lambda most: not is_product or (most or 5) >= 5)),
        max_nodes=MAX_NODES if is_product else draw(NODES),
        shape=Shape.PRODUCT if is_product else draw(shapes),
        stop=stop,
        threshold=threshold,
        widths=draw(st.sampled_from([(1,), (3, 2, 1), (2,) * 5])) if is_product else None,
        verification=verification,
        num_roots=draw(NODES) if verification is Verification.TARGET_INIT else None,
        drafter=draw(DRAFTERS),
        lookup=draw(maybe(st.booleans())),
    )


def objects(optional=None, **required):
    fields = {key: st.just(at) if isinstance(at, str) else at for key, at in required.items()}
    return st.fixed_dictionaries(fields, optional=optional)


ROLES = SAID.filter(lambda role: role != "tool")
ARGUMENTS = st.dictionaries(SAID, st.integers()).map(json.dumps)
CALLS = objects(id=SAID, type="function", function=objects(name=SAID, arguments=ARGUMENTS))
CALLED = st.lists(CALLS, min_size=1, max_size=2).map(tuple)
MESSAGE = objects({"name": SAID, "x": SAID}, role=ROLES, content=SAID)
MESSAGE |= objects(role="tool", content=SAID, tool_call_id=SAID)
MESSAGE |= objects(role="assistant", content=SAID | st.just(""), tool_calls=CALLED)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=3)
TOOLS = st.builds(Tool, st.from_regex(r"[a-z]{1,9}", fullmatch=True), SAID | st.just(""), ARGUMENTS)
IDS_PROMPT = st.lists(IDS, min_size=1, max_size=6).map(tuple)
ASKS = st.builds(
    Ask,
    sampling=SAMPLING,
    max_tokens=maybe(st.integers(1, 2**31 - 1)),
    stop=st.lists(SAID, max_size=3).map(tuple),
    speculation=speculating() | st.just(SpeculationOptions(mode=Mode.OFF)),
    request_id=NAMES,
    with_origins=st.booleans(),
    with_rounds=st.booleans(),
    num_logprobs=maybe(st.integers(0, MAX_LOGPROBS)),
    grammar=maybe(st.builds(Grammar, st.sampled_from(ASKED_KINDS), SAID)),
    model_defaults=st.lists(st.sampled_from(MODEL_DEFAULTS), max_size=3).map(tuple),
)
REFS = st.builds(SessionRef, st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), st.booleans())
GENERATIONS = st.builds(
    Generation,
    prompt=SAID | IDS_PROMPT | MESSAGES.map(tuple),
    ask=ASKS,
    model=NAMES,
    session=maybe(REFS),
)
WITH_TOOLS = st.builds(
    Generation,
    prompt=SAID | MESSAGES.map(tuple),
    ask=st.builds(
        Ask,
        form=st.lists(TOOLS, min_size=1, max_size=3, unique_by=lambda at: at.name).map(
            lambda tools: PromptForm(tools=tuple(tools), chat_template_kwargs='{"a": [1]}')
        ),
        num_logprobs=st.integers(0, MAX_LOGPROBS),
        prompt_logprobs=st.booleans(),
    ),
)
WITH_ENDS = st.builds(
    Generation,
    prompt=SAID,
    ask=st.builds(
        Ask,
        sampling=st.just(SamplingParams(min_tokens=3)),
        stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
        ignore_eos=st.booleans(),
    ),
)


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@given(GENERATIONS | WITH_TOOLS | WITH_ENDS)
def test_a_request_is_the_same_on_the_other_side(generation):
    assert asked.generation_from_pb(over_the_wire(asked.generation_to_pb(generation))) == generation


@given(SAID | IDS_PROMPT)
def test_a_raw_prompt_stays_raw(prompt):
    assert asked.prompt_from_pb(over_the_wire(asked.prompt_to_pb(prompt, RAW))) == (prompt, RAW)


def generation(**changes):
    return pb.Generation(**{"prompt": pb.Prompt(text="hello"), **changes})


def test_what_is_unset_takes_the_default():
    for message in (generation(), generation(n=1)):
        assert asked.generation_from_pb(message) == Generation("hello")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (generation(stopping=pb.StoppingCriteria(max_new_tokens=2**31)), "max_tokens is 2"),
        (generation(speculation=pb.SpeculationOptions(max_draft_tokens=0)), "is 0"),
        (generation(speculation=pb.SpeculationOptions(num_roots=0)), "num_roots is 0"),
        (generation(speculation=pb.SpeculationOptions(drafter="")), "drafter is ''"),
        (generation(n=0), "n is 0"),
    ],
)
def test_zero_is_not_the_same_as_unset(message, reason):
    with pytest.raises(InvalidRequest, match=reason):
        asked.generation_from_pb(message)


@pytest.mark.parametrize("told", [{"mode": 9}, {"shape": 77}, {"stop": -1}, {"verification": 5}])
def test_an_unknown_number_of_an_enumeration_is_refused(told):
    with pytest.raises(InvalidRequest, match="must be one of 1, "):
        asked.generation_from_pb(generation(speculation=pb.SpeculationOptions(**told)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value):
    sampling = ["temperature", "top_p", "min_p", "repetition_penalty"]
    sampling += ["presence_penalty", "frequency_penalty"]
    for name in sampling:
        message = generation(sampling=common_pb2.SamplingParams(**{name: value}))
        with pytest.raises(InvalidRequest, match=name):
            asked.generation_from_pb(message)
    for stop in (pb.SpeculationOptions(stop=3, threshold=value), pb.SpeculationOptions()):
        stop.threshold = value
        with pytest.raises(InvalidRequest, match="threshold"):
            asked.generation_from_pb(generation(speculation=stop))


@pytest.mark.parametrize(
    "message",
    [
        generation(prompt=pb.Prompt()),
        generation(prompt=pb.Prompt(token_ids=pb.TokenIds())),
        generation(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[2**31]))),
        generation(prompt=pb.Prompt(chat=pb.ChatMessages())),
        generation(prompt=pb.Prompt(chat=pb.ChatMessages(messages=[pb.ChatMessage()]))),
        generation(stopping=pb.StoppingCriteria(stop_token_ids=[1] * 65)),
        generation(stopping=pb.StoppingCriteria(ignore_eos=True), regex="a"),
        generation(stopping=pb.StoppingCriteria(stop=[""])),
        *(generation(session=pb.SessionRef(session_id=at)) for at in ("", "a" * 65, "a\n")),
        *(generation(request_id="x" * 129), generation(model="é")),
    ],
)
def test_an_ill_formed_request_is_refused(message):
    with pytest.raises(InvalidRequest):
        asked.generation_from_pb(message)


@pytest.mark.parametrize(
    "ask",
    [
        Ask(sampling=SamplingParams(top_k=2**32)),
        Ask(sampling=SamplingParams(logit_bias=((2**32, 1.0),))),
    ],
)
def test_what_has_no_place_on_the_wire_is_refused_before_it_is_sent(ask):
    with pytest.raises(InvalidRequest, match=str(2**32 - 1)):
        asked.generation_to_pb(Generation("hello", ask))


@pytest.mark.parametrize("text", ["\ud800", "half \udc00 a pair"])
def test_text_without_bytes_is_refused_before_it_is_sent(text):
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        asked.prompt_to_pb(text)
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        Ask(stop=(text,))
