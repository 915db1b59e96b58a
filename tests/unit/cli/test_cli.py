"""The command line: what it prints, and that bad input is one sentence and exit code 2."""

import io
import json
import logging
import sys

import pytest

from slipstream.cli.main import WarningPrinter, exit_code
from support.commands import refusal
from support.models.tiny_checkpoint import save_checkpoint

PROMPT = "abcabcabcabc"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(save_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny"))


FORCED = ("--speculation", "forced")


@pytest.fixture
def generate(checkpoint, capsys):
    """Run `slipstream generate` on the tiny model; its code and what it wrote."""

    def call(*arguments):
        fixed = ["--target", checkpoint, "--draft", "ngram", "--max-new-tokens", "12"]
        return exit_code(["generate", *fixed, *arguments]), *capsys.readouterr()

    return call


def test_generate_streams_text_and_ends_with_one_line_of_figures(generate):
    code, out, err = generate(PROMPT)
    assert (code, err) == (0, "")
    *_text, line = out.splitlines()
    assert line.startswith("[12 tokens, ")
    assert "tokens/s, mean acceptance length" in line


def test_json_is_one_object_with_text_tokens_and_statistics(generate):
    code, out, err = generate("--json", *FORCED, PROMPT)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert len(answer["token_ids"]) == 12
    assert answer["finish_reason"] == "length"
    names = {"mean_acceptance_length", "draft_acceptance_rate", "num_draft_tokens"}
    names |= {"num_accepted_draft_tokens", "per_step_accepted", "tokens_per_s", "prefill_s"}
    assert names <= set(answer["stats"])


def test_comparing_runs_plain_decoding_too_and_finds_the_same_tokens_of_every_prompt(generate):
    code, out, _ = generate("--json", "--compare", "--raw", *FORCED, PROMPT * 3, PROMPT)
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, len(answers)) == (0, 2)
    for answer in answers:
        assert answer["stats"]["num_draft_tokens"] > 0 == answer["stats"]["num_cached_tokens"]
        assert answer["compare"]["identity"] == "identical"
        assert answer["compare"]["plain_token_ids"] == answer["token_ids"]
        assert answer["compare"]["speed_ratio"] > 0


def test_several_prompts_have_a_line_of_figures_each_and_one_together(generate):
    code, out, _ = generate("--compare", "--speculation", "off", PROMPT, "other")
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if line.startswith("> ")] == [f"> {PROMPT}", "> other"]
    assert sum(line.startswith("[12 tokens, ") for line in lines) == 2
    assert lines[-2].startswith("[2 prompts, 24 tokens, ")
    assert lines[-1].startswith("Nothing was drafted: here 4 tokens take ")


def test_a_dash_reads_the_prompt_from_standard_input(generate, monkeypatch):
    _, direct, _ = generate("--quiet", PROMPT)
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    code, piped, _ = generate("--quiet", "-")
    assert (code, piped) == (0, direct)


@pytest.fixture
def chat(checkpoint, capsys, monkeypatch):
    """Run `slipstream chat` on these lines; what it wrote to standard error."""

    def call(*lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        fixed = ["--target", checkpoint, "--draft", "ngram", "--max-new-tokens", "5"]
        assert exit_code(["chat", *fixed]) == 0
        return capsys.readouterr().err

    return call


def test_chat_answers_every_turn_and_begins_anew_on_request(chat):
    said = chat("hello", "more", "/reset", "hello", "/nonsense", "/quit", "unread")
    assert said.count("tokens/s") == 3
    assert "A new conversation." in said
    assert "There is no /nonsense" in said


class Interrupting(io.StringIO):
    """Standard output on which Ctrl-C is pressed while the first text appears."""

    is_pressed = False

    def write(self, text):
        if not self.is_pressed:
            self.is_pressed = True
            raise KeyboardInterrupt
        return super().write(text)


def test_an_interrupted_reply_ends_and_the_conversation_goes_on(chat, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Interrupting())
    said = chat("hello", "more")
    assert said.count("(interrupted)") == 1
    assert said.count("tokens/s") == 1


def test_a_turn_without_an_answer_changes_no_conversation(chat):
    said = chat("x" * 200, "hello")
    assert "exceed the context" in said
    assert said.count("tokens/s") == 1


BAD = [
    (["--temperature", "nan"], "temperature is nan"),
    (["--top-k", "many"], "--top-k"),
    (["--logit-bias", "5"], "ID=VALUE"),
    (["--max-new-tokens", "0"], "max_tokens is 0"),
    (["--max-new-tokens", "1000"], "context of 128"),
    (["--draft", "nonsense"], "'nonsense'"),
    (["--target", "no-such-model"], "'no-such-model'"),
    (["--speculation", "off", "--shape", "chain"], "mode is off, but shape is given"),
    (["--speculation", "sometimes"], "--speculation"),
    (["--shape", "product", "--widths", "a,b"], "'a,b'"),
    (["--quiet", "--json"], "--quiet"),
    (["--origins"], "go with --json only"),
    (["--logprobs", "0"], "go with --json only"),
    (["--logprobs", "21"], "--logprobs"),
    (["--raw", "--system", "be brief"], "--system"),
    (["--no-such-flag"], "--no-such-flag"),
    (["other"], "2 prompts are given, but only --compare takes more than one"),
    (["--compare", "-"], "- reads standard input as the only prompt"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(checkpoint, capsys, flags, reason):
    fixed = ["--target", checkpoint, "--draft", "ngram", "--max-new-tokens", "12"]
    assert reason in refusal(capsys, "generate", *fixed, *flags, PROMPT)


def test_models_are_listed_and_located(checkpoint, capsys):
    assert exit_code(["models", "list"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
    assert exit_code(["models", "pull", checkpoint]) == 0
    assert capsys.readouterr().out == checkpoint + "\n"


def test_warnings_are_printed_once_each(capsys):
    printer = WarningPrinter()
    for text in ("one", "two", "one"):
        printer.handle(logging.makeLogRecord({"levelno": logging.WARNING, "msg": text}))
    assert capsys.readouterr().err == "warning: one\nwarning: two\n"
