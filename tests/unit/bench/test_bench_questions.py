"""Reading prompts: every line is a question, or the file is refused with the line's number."""

import json

import pytest

from slipstream.bench.questions import Question, read_questions, select
from slipstream.core.errors import InvalidRequest


def line(number=1, category="qa", turns=("Who?",), **more):
    values = {"question_id": number, "category": category, "turns": list(turns), **more}
    return json.dumps(values)


def written(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_questions_come_in_the_order_of_the_file(tmp_path):
    lines = line(7, "qa", ["Wer?", "Ünd?"]), "", line("b", "math", reference=["4"])
    both = Question(7, "qa", ("Wer?", "Ünd?")), Question("b", "math", ("Who?",))
    assert read_questions(written(tmp_path, *lines)) == both


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        (line(None), "question_id None"),
        (line(category=""), "category ''"),
        (line(turns=[]), "must have turns"),
        (line(turns=["  "]), "must have turns"),
        ('{"question_id": 1, "category": "qa"}', "must have turns"),
        (line(0), "question_id 0 a second time"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path, bad, reason):
    with pytest.raises(InvalidRequest, match=rf"line 2 .*{reason}"):
        read_questions(written(tmp_path, line(0), bad))


QUESTIONS = tuple(Question(number, category, ("?",)) for number, category in enumerate("aaabbc"))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [0]), (3, [0, 3, 5]), (4, [0, 1, 3, 5]), (6, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])],
)
def test_a_limit_takes_evenly_from_every_category(limit, expected):
    chosen = select(QUESTIONS, limit)
    assert [question.question_id for question in chosen] == expected


def test_an_empty_limit_is_refused():
    with pytest.raises(InvalidRequest, match="limit is 0"):
        select(QUESTIONS, 0)
