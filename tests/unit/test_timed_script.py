"""Scripts: tokens by which engines that compute nothing agree as recorded."""

from slipstream.bench.timed.script import WRONG, Script
from slipstream.sizing.making import Guess, made
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round

DEVICES = Devices(((1, 0.04), (32, 0.044)), 0.01)
RECORDING = Recording(
    DEVICES,
    (
        RecordedRequest(3, (Round(2, 2, 1), Round(2, 2, 2), Round(0, 0, 0))),
        RecordedRequest(2, (Round(3, 3, 0),)),
    ),
)


def test_what_follows_a_prompt_is_its_answer():
    script = Script(RECORDING)
    for number, request in enumerate(RECORDING.requests):
        prompt, answer = script.prompt(number), script.answer(number)
        assert len(prompt) == request.num_prompt_tokens
        assert len(answer) == request.num_tokens
        said = [prompt[-1]]
        while len(said) <= len(answer):
            said.append(script.following(said[-1]))
        assert tuple(said[1:]) == answer
        assert max(*prompt, *answer) < script.vocab_size


def test_no_token_is_of_two_answers():
    script = Script(RECORDING)
    said = [*script.answer(0), *script.answer(1), script.prompt(0)[0], script.prompt(1)[0], WRONG]
    assert len(set(said)) == len(said) == script.vocab_size


def test_guesses_are_right_as_far_as_recorded():
    script = Script(made(Guess(0.6, 4, 30, 5), DEVICES))
    request, answer = script._requests[0], script.answer(0)
    at = 0
    for recorded in request.rounds:
        if recorded.depth:
            guesses = script.guesses(answer[at]).tokens
            assert len(guesses) == recorded.depth
            right = [
                guess == token for guess, token in zip(guesses, answer[at + 1 :], strict=False)
            ]
            assert sum(right) == recorded.accepted
            assert all(right[: recorded.accepted])
        at += recorded.accepted + 1


def test_a_wrong_token_leads_nowhere():
    script = Script(RECORDING)
    assert script.following(WRONG) == WRONG
    assert script.guesses(WRONG).tokens == (WRONG,)
