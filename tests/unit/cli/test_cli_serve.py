"""`serve`, `up` and `--router`: what they pass on, and what they refuse before anything starts."""

import socket
from pathlib import Path

import pytest

from slipstream.cli.up import StackFlags
from support.commands import ran_python, refusal

NOBODY = "127.0.0.1:1"
WITHOUT_TORCH = """
import sys
from slipstream.cli.main import exit_code
code = exit_code(sys.argv[1:])
heavy = sorted({"torch", "transformers"} & set(sys.modules))
sys.exit(f"loaded {heavy}" if heavy else code)
"""


def without_torch(*arguments):
    """A command in a process of its own, which fails if torch is loaded at its end."""
    return ran_python("-c", WITHOUT_TORCH, *arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "end"),
    [
        (("serve", "router", "--address", "127.0.0.1:0"), 2, "error: a router needs targets"),
        (("serve", "http", "--router", "router.example:50051"), 2, "in the clear"),
        (("generate", "--router", "nonsense", "hello"), 2, "'nonsense', but must be HOST:PORT"),
        (("--help",), 0, ""),
        (("up", "--help"), 0, ""),
    ],
)
def test_routers_fronts_their_callers_and_help_never_load_torch(arguments, code, end):
    ended = without_torch(*arguments)
    assert (ended.returncode, "Usage" in ended.stdout) == (code, code == 0), ended.stderr
    assert end in ended.stderr


def test_an_address_that_is_taken_is_no_bad_input():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        failed = without_torch("serve", "router", "--targets", NOBODY, "--address", taken)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1] == f"error: the address {taken} can't be listened on"


BAD_UP = [
    (["--port", "65536"], "port is 65536, but must be from 0 to 65535"),
    (["--model", "no-such-model"], "'no-such-model'"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD_UP)
def test_up_refuses_nonsense_before_it_starts_anything(flags, reason, capsys):
    assert reason in refusal(capsys, "up", *flags)


def test_up_gives_every_service_its_part_and_leaves_the_rest_to_it():
    given = {"draft": "vanilla:d", "numerics": "fast", "threads": 2, "config": Path("f")}
    plan = StackFlags(model="m", port=7, **given).plan()
    common = ("--config", "f", "--threads", "2")
    assert plan.flags["target"] == (*common, "--model", "m", "--numerics", "fast")
    assert plan.flags["draft"] == (*common, "--draft", "vanilla:d", "--target-model", "m")
    assert (plan.flags["router"], plan.port) == (("--config", "f"), 7)
    assert StackFlags(model="m").plan().flags["target"] == ("--model", "m")
    keeping = StackFlags(model="m", draft="eagle3:h").plan().flags["target"]
    assert keeping == ("--model", "m", "--hidden-layers", "eagle3:h")


BAD_ROUTER = [
    (["--target", "smollm2-135m"], "--target runs models in this process"),
    (["--device", "cpu"], "--device runs models in this process"),
    (["--token-file", "no-such-file"], "no-such-file can't be read"),
    (["--tls-cert", "no-such-file"], "go together only"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD_ROUTER)
@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
def test_options_of_engines_are_refused_beside_a_router(command, flags, reason, capsys):
    assert reason in refusal(capsys, *command, "--router", NOBODY, *flags)


@pytest.mark.parametrize("flag", ["--model", "--token-file", "--tls-ca", "--tls-key"])
def test_options_of_a_router_are_refused_without_one(flag, capsys):
    sentence = f"error: {flag} goes with --router only\n"
    assert refusal(capsys, "generate", flag, "x", "hello") == sentence


def test_a_token_file_without_a_token_is_refused(tmp_path, capsys):
    empty = tmp_path / "token"
    empty.write_text("\n")
    arguments = ("generate", "--router", NOBODY, "--token-file", str(empty), "hello")
    assert refusal(capsys, *arguments) == f"error: {empty} holds no token\n"


@pytest.mark.parametrize(
    ("line", "word", "found"),
    [("slipstream gen", 1, "generate"), ("slipstream generate --js", 2, "--json")],
)
def test_a_shell_completes_commands_and_options(line, word, found):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(word), "_SLIPSTREAM_COMPLETE": "complete_bash"}
    assert found in ran_python("-m", "slipstream.cli.main", **asked).stdout.split()
