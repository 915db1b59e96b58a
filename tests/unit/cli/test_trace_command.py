"""`slipstream trace`: the summary, the page and its rows, and what it refuses."""

import re
from html.parser import HTMLParser

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.trace import page, summary
from slipstream.cli.up import traces_directory
from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.traces import find_trace, printable, read_spans
from support.commands import refusal
from support.telemetry.sample_traces import START_NS, write_trace

EVIL = "</script><script>alert(1)</script>\" onload='x' \x1b[31m\u202e & <img src=http://evil>"


def found(directory):
    return find_trace(read_spans(directory), None)


def sample(directory, *request_id, **more):
    write_trace(directory, *request_id, **more)
    return found(directory)


def test_what_spans_say_gives_a_terminal_no_orders(tmp_path):
    trace = sample(tmp_path, "r\x1b]0;x\x07", error=EVIL, say={"gen_ai.request.model": EVIL})
    assert not set("\x1b\x07\u202e") & set("\n".join(summary(trace).lines()))


def test_bars_lie_where_their_spans_do_and_end_at_the_edge_of_the_page(tmp_path):
    to = write_trace(tmp_path)
    to.span("target", "late", (90, 5000), to.spans[1])
    source = page(found(tmp_path))

    def bar(name):
        row = source[source.index(f'title="{name} (') :]
        offset, took = re.findall(r'class="ms">([\d.]+)<', row)[:2]
        left, width = re.search(r'<b style="left:([\d.]+)%;width:([\d.]+)%"', row).groups()
        return (float(offset), float(took)), (float(left), float(width))

    assert bar("session.park")[0] == (99, 2)
    assert bar("session.park")[1] == pytest.approx((100 * 99 / 102, 100 * 2 / 102), rel=1e-3)
    (_, took), (left, width) = bar("late")
    assert (took, left + width) == pytest.approx((4910, 100), rel=1e-4)


class Page(HTMLParser):
    """What a page's elements are, and the text it shows."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_runs_and_loads_nothing_whatever_spans_say(tmp_path):
    say = {"gen_ai.request.model": EVIL, EVIL: EVIL, "list": (EVIL, EVIL)}
    source = page(sample(tmp_path, EVIL, error=EVIL, say=say))
    read = Page(source)
    assert not read.tags & {"script", "img", "link", "iframe", "object", "a", "base", "form"}
    assert {name for name, _ in read.attributes} <= {
        "lang", "charset", "http-equiv", "content", "name", "class", "style", "title",
    }  # fmt: skip
    assert "url(" not in source
    assert "@import" not in source
    assert "default-src 'none'" in source
    assert re.findall(r"https?:", re.sub(r"<img src=http:", "", "".join(read.text))) == []
    assert printable(EVIL) in "".join(read.text)


def test_the_page_holds_every_span_with_all_its_attributes(tmp_path):
    trace = sample(tmp_path)
    source = page(trace)
    assert source.count("<details") == len(trace.spans)
    for span in trace.spans:
        assert span.span_id in source
        assert all(key in source for key in span.attributes)


def sentences(trace):
    return " ".join(summary(trace).sentences)


def test_the_summary_says_what_the_request_was_and_where_its_time_went(tmp_path):
    said = summary(sample(tmp_path))
    facts = said.facts
    assert facts["request"] == "request-1"
    assert facts["tokens"] == "12 in, 28 out"
    assert facts["wall time"] == "100.0 ms"
    assert facts["first token after"] == "23.5 ms"
    assert [name for name, _, _ in said.parts][:3] == ["acquire", "encode", "prefill"]
    assert sum(share for _, _, share in said.parts) == pytest.approx(1)
    assert (said.parts[-1][0], said.explained) == ("unexplained", 0.99)


def test_the_summary_says_what_drafting_gave(tmp_path):
    said = sentences(sample(tmp_path))
    assert "9 rounds with a draft gave 3.00 tokens each, 1 plain round one each." in said
    assert "Of 45 draft tokens 18 were accepted (40%)." in said
    assert "waited 3.0 ms for its draft and 4.0 ms for its target, 2.5 ms a token" in said
    assert "helped if a plain round takes longer" in said
    assert "Drafting was ended by cost 7x, svip 2x." in said
    assert "have parents that are not" not in said


@pytest.mark.parametrize(("plain_ms", "verdict"), [(2.4, "did not help"), (2.6, "helped.")])
def test_a_plain_round_says_whether_speculation_helped(tmp_path, plain_ms, verdict):
    said = sentences(sample(tmp_path, say={"slipstream.speculation.plain_round_ms": plain_ms}))
    assert f"plain rounds took {plain_ms} ms, so speculation {verdict}" in said


def test_without_a_draft_the_summary_says_why(tmp_path):
    said = {
        "slipstream.speculation.steps": 0,
        "slipstream.speculation.plain_steps": 27,
        "slipstream.fallbacks.unavailable": 27,
    }
    text = sentences(sample(tmp_path, say=said))
    assert "Nothing was drafted: all 27 rounds after the prompt were plain." in text
    assert "In 27 rounds no draft answered (unavailable 27x)." in text


def test_errors_and_what_is_missing_are_said(tmp_path):
    write_trace(tmp_path, error="it is gone")
    (tmp_path / "client.jsonl").unlink()
    kept = [line for line in (tmp_path / "draft.jsonl").read_text().splitlines(keepends=True)]
    (tmp_path / "draft.jsonl").write_text("".join(kept[1:]))
    text = sentences(found(tmp_path))
    assert "draft.propose of router ended in Unavailable: it is gone." in text
    assert "spans have parents that are not in these files" in text


def test_the_command_shows_a_request_by_its_id_or_the_one_that_ended_last(tmp_path, capsys):
    write_trace(tmp_path, "late", start_ns=START_NS + 10**9)
    write_trace(tmp_path, "early")
    for flags, said in ((["early"], "early"), (["--last"], "late")):
        assert exit_code(["trace", *flags, "--dir", str(tmp_path)]) == 0
        assert re.search(rf"^request +{said}$", capsys.readouterr().out, re.MULTILINE)


def test_a_page_is_written_whole_to_its_file(tmp_path):
    write_trace(tmp_path, say={"odd": float("nan")})
    out = tmp_path / "page.html"
    assert exit_code(["trace", "--last", "--html", str(out), "--dir", str(tmp_path)]) == 0
    assert out.read_text() == page(found(tmp_path))
    assert not list(tmp_path.glob("*.part"))


REFUSED = [
    ([], "say which request"),
    (["r", "--last"], "both request r and --last"),
    (["r"], "has no trace of request 'r'"),
    (["r", "--dir", "{}/none"], "`slipstream up` keeps them"),
    (["--last", "--dir", "{}/none"], "there are no traces at"),
    (["--last", "--dir", "{}/empty"], "no request has left a trace in"),
    (["--last", "--html", "{}/none/page.html"], "page.html can't be written"),
]


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_what_cannot_be_shown_is_one_sentence(tmp_path, capsys, flags, reason):
    write_trace(tmp_path)
    (tmp_path / "empty").mkdir()
    named = [flag.format(tmp_path) for flag in flags]
    where = [] if "--dir" in flags else ["--dir", str(tmp_path)]
    assert reason in refusal(capsys, "trace", *named, *where)


def test_up_keeps_traces_beside_the_models_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    assert traces_directory(None, None) == tmp_path / "traces"
    assert traces_directory("none", None) is None
    assert traces_directory(str(tmp_path / "t"), None) == tmp_path / "t"


def test_up_leaves_traces_to_a_configuration_that_says_where_they_go(tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text('[telemetry]\ntraces = ["otlp"]\n')
    assert traces_directory(None, file) is None
    assert traces_directory(str(tmp_path), file) == tmp_path
    file.write_text("[telemetry]\ntraces = 7\n")
    with pytest.raises(InvalidRequest, match="traces"):
        traces_directory(None, file)
    monkeypatch.setenv("SLIPSTREAM_TELEMETRY_TRACES", "otlp")
    assert traces_directory(None, None) is None
