"""Options come from a file, the environment and flags, in this order; nonsense is refused."""

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path

import pytest

from slipstream.config import load_config, load_settings, parse_flags, resolved, traces_dir
from slipstream.core.errors import InvalidRequest
from slipstream.options import build, check_bounds, group, option, options_of


@dataclass(frozen=True, slots=True)
class Options:
    """One field of every kind there is."""

    name: str = option("some", "A name, 100% free.")
    size: int = option(3, "A size.")
    share: float = option(0.5, "A share.")
    is_open: bool = option(False, "A switch.")
    title: str | None = option(None, "A title.")
    most: int | None = option(None, "A limit.")
    least: float | None = option(1.5, "Another limit.")
    place: Path | None = option(None, "A file.")
    peers: tuple[str, ...] = option((), "Some addresses.")
    token: str | None = option(None, "A password.", secret=True)

    def __post_init__(self):
        if self.size < 0:
            raise InvalidRequest(f"size is {self.size}, but must be at least 0")


@dataclass(frozen=True, slots=True)
class Needy:
    address: str = field(metadata={"help": "Where."})


@dataclass(frozen=True, slots=True)
class Tls:
    """A group of options that services share."""

    cert: Path | None = option(None, "A certificate.")
    secret: str | None = option(None, "A secret.", secret=True)
    days: int = option(30, "How long it is valid.", least=1)

    def __post_init__(self):
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Service:
    """Options of its own, and a group whose options have a prefix, one another default."""

    name: str = option("some", "A name.")
    tls: Tls = group(Tls, "tls_", days=option(7, "Days it is valid for."))


FILE = """
[target]
name = "from the file"
size = 7
share = 1
is_open = true
place = "x/y"
peers = ["a:1", "b:2"]

[draft]
anything = "is not looked at"
"""


@pytest.fixture
def load(tmp_path):
    """`load_config` of `Options` out of a file's text, an environment and typed flags."""

    def call(text="", env=None, argv=()):
        file = tmp_path / "slipstream.toml"
        file.write_text(text)
        (flags,), _ = parse_flags([Options], argv, prog="target", doc="A target.")
        return load_config(Options, section="target", file=file, env=env or {}, flags=flags)

    return call


@pytest.mark.parametrize(
    ("env", "models", "traces"),
    [
        ({"HOME": "/u"}, "/u/.cache/slipstream/models", "/u/.cache/slipstream/traces"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/slipstream/models", "/x/slipstream/traces"),
        ({"HOME": "/u", "SLIPSTREAM_CACHE": "/a/b"}, "/a/b", "/a/b/traces"),
        ({"SLIPSTREAM_CACHE": "/a/b"}, "/a/b", "/a/b/traces"),
    ],
)
def test_the_cache_is_the_users_or_the_one_that_the_environment_names(env, models, traces):
    assert (load_settings(env).cache_dir, traces_dir(env)) == (Path(models), Path(traces))


@pytest.mark.parametrize(("value", "offline"), [("", False), ("0", False), ("1", True)])
def test_offline_is_a_switch(value, offline):
    assert load_settings({"HOME": "/u", "SLIPSTREAM_OFFLINE": value}).offline is offline
    with pytest.raises(InvalidRequest, match="SLIPSTREAM_OFFLINE is 'maybe'"):
        load_settings({"HOME": "/u", "SLIPSTREAM_OFFLINE": "maybe"})


def test_a_clients_token_is_in_the_environment_and_not_in_what_is_printed():
    settings = load_settings({"HOME": "/u", "SLIPSTREAM_TOKEN": "hush"})
    assert settings.token == "hush"
    assert "hush" not in repr(settings)
    assert load_settings({"HOME": "/u", "SLIPSTREAM_TOKEN": ""}).token is None


def test_a_file_gives_values_of_every_kind(load):
    at = load(FILE)
    assert (at.name, at.size, at.share, at.is_open) == ("from the file", 7, 1.0, True)
    assert (at.place, at.peers) == (Path("x/y"), ("a:1", "b:2"))
    assert type(at.share) is float
    assert load(FILE, argv=["--no-is-open"]).is_open is False


def test_the_environment_overrides_the_file_and_flags_override_both(load):
    env = {"SLIPSTREAM_TARGET_SIZE": "8", "SLIPSTREAM_TARGET_NAME": "from the environment"}
    at = load(FILE, env, ["--size", "9"])
    assert (at.size, at.name, at.share) == (9, "from the environment", 1.0)


def test_variables_are_text_in_every_kind(load):
    values = {"NAME": "n", "SIZE": "1", "SHARE": "0.25", "IS_OPEN": "yes", "MOST": "4"}
    values |= {"PLACE": "p", "PEERS": "a:1, b:2,", "TITLE": "t", "LEAST": "2", "TOKEN": "k"}
    at = load(env={f"SLIPSTREAM_TARGET_{name}": value for name, value in values.items()})
    assert at == Options("n", 1, 0.25, True, "t", 4, 2.0, Path("p"), ("a:1", "b:2"), token="k")


def test_an_empty_text_takes_an_optional_value_back(load):
    at = load('[target]\nmost = 3\ntitle = "t"\n', {"SLIPSTREAM_TARGET_MOST": ""}, ["--least", ""])
    assert (at.most, at.least, at.title) == (None, None, "t")


KNOWN = "is_open, least, most, name"
BAD_FILES = [
    ("[target]\nsise = 1", r"\[target\] of .*slipstream.toml has 'sise', but known are " + KNOWN),
    ("[targets]\nsize = 1", "has the table 'targets'; tables are draft, http, router, target"),
    ("size = 1", "has the key outside of a table 'size'"),
    ("target = 1", "has the key outside of a table 'target'"),
    ("[target", "is not TOML"),
    ('[target]\nsize = "1"', r"size in \[target\] of .* is '1', but must be a whole number"),
    ("[target]\nsize = 1.0", "must be a whole number"),
    ("[target]\nsize = true", "must be a whole number"),
    ("[target]\nshare = nan", "share .* is nan, but must be a finite number"),
    ("[target]\nname = 3", "must be text"),
    ('[target]\nis_open = "yes"', "must be true or false"),
    ('[target]\nplace = ""', "must be a path"),
    ('[target]\npeers = "a:1"', "must be a list of texts"),
    ("[target]\npeers = [1]", "must be a list of texts"),
    ("[target]\nsize = -1", "size is -1, but must be at least 0"),
]
BAD_VARIABLES = [
    ({"SIZE": "many"}, "SLIPSTREAM_TARGET_SIZE is 'many', but must be a whole number"),
    ({"SIZE": ""}, "must be a whole number"),
    ({"SHARE": "inf"}, "must be a finite number"),
    ({"IS_OPEN": "perhaps"}, "must be true or false"),
    ({"SISE": "1"}, "the environment has 'SLIPSTREAM_TARGET_SISE', but known are .*_TARGET_SIZE"),
]
BAD_FLAGS = [
    (["--size", "many"], "--size is 'many', but must be a whole number"),
    (["--size"], "--size: expected one argument"),
    (["--sise", "1"], "target has no '--sise'; there are --config, --name, --size"),
    (["--siz", "1"], "target has no '--siz'"),
    (["stray"], "target has no 'stray'"),
    (["--is-open=yes"], "--is-open"),
    (["--token", "hush"], "target has no '--token'"),
]
BAD = [
    *(({"text": text}, reason) for text, reason in BAD_FILES),
    *(({"env": values}, reason) for values, reason in BAD_VARIABLES),
    *(({"argv": argv}, reason) for argv, reason in BAD_FLAGS),
]


@pytest.mark.parametrize(("given", "reason"), BAD)
def test_what_makes_no_sense_is_refused_in_one_sentence_wherever_it_stands(load, given, reason):
    if "env" in given:
        given = {"env": {f"SLIPSTREAM_TARGET_{name}": at for name, at in given["env"].items()}}
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        load(**given)
    assert "\n" not in str(refusal.value)


def test_what_has_no_default_must_be_given():
    with pytest.raises(InvalidRequest, match="--address is needed, or SLIPSTREAM_X_ADDRESS"):
        load_config(Needy, section="x", env={})
    assert load_config(Needy, section="x", env={"SLIPSTREAM_X_ADDRESS": "a:1"}).address == "a:1"


def test_help_says_of_every_option_what_it_is_and_its_default(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags([Options], ["--help"], prog="slipstream serve target", doc="A target.")
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "usage: slipstream serve target" in said
    assert "A target." in said
    assert "A name, 100% free. Default: some." in said
    assert "--no-is-open" in said
    assert "password" not in said


def test_what_is_logged_is_plain_values_with_secrets_masked():
    shown = resolved(Options(place=Path("a/b"), peers=("a", "b"), token="hush"))
    assert (shown["place"], shown["peers"], shown["token"]) == ("a/b", ["a", "b"], "***")
    assert (shown["size"], shown["title"]) == (3, None)
    assert resolved(Options())["token"] is None


def test_options_of_a_group_stand_beside_the_others_under_its_prefix(tmp_path):
    assert [at.name for at in options_of(Service)] == ["name", "tls_cert", "tls_secret", "tls_days"]
    file = tmp_path / "slipstream.toml"
    file.write_text('[target]\nname = "n"\ntls_cert = "c"\n')
    (flags,), _ = parse_flags([Service], ["--tls-days", "9"], prog="target", doc="")
    env = {"SLIPSTREAM_TARGET_TLS_SECRET": "hush"}
    at = load_config(Service, section="target", file=file, env=env, flags=flags)
    assert at == Service("n", Tls(Path("c"), "hush", 9))
    assert resolved(at) == {"name": "n", "tls_cert": "c", "tls_secret": "***", "tls_days": 9}
    assert "hush" not in repr(at)


def test_a_group_checks_its_values_wherever_they_come_from():
    with pytest.raises(InvalidRequest, match="days is 0, but must be 1 or more"):
        build(Service, tls_days=0)
    with pytest.raises(TypeError, match="has no option tls_year"):
        build(Service, tls_year=1)
    with pytest.raises(InvalidRequest, match="SLIPSTREAM_X_TLS_YEAR"):
        load_config(Service, section="x", env={"SLIPSTREAM_X_TLS_YEAR": "1"})


BOUNDS = [
    ({"above": 0}, 0, "above 0"),
    ({"least": 1}, 0.5, "1 or more"),
    ({"most": 1}, 1.5, "at most 1"),
    ({"least": 0, "most": 1}, float("nan"), "from 0 to 1"),
    ({"above": 0, "most": 9}, float("inf"), "above 0 and at most 9"),
]


@pytest.mark.parametrize(("bounds", "value", "words"), BOUNDS)
def test_a_value_out_of_its_bounds_is_refused_with_all_of_them(bounds, value, words):
    kind = make_dataclass("Kind", [("it", float, option(1.0, "A number.", **bounds))])
    check_bounds(kind())
    with pytest.raises(InvalidRequest, match=f"it is {value}, but must be {words}$"):
        check_bounds(kind(value))
