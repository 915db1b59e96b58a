"""Pages run as they stand: what is read out of them, and what is made of their output."""

import pytest

from support.deployment import pages

PAGE = """# Title

```sh
echo one
```

It prints:

```text
o...
```

```python
print("two")
```
"""


def ran(text, folder):
    folder.joinpath("here").mkdir()
    todo = pages.blocks(text)
    return todo, pages.run(todo, folder / "here", tools=folder)


def test_what_is_shown_belongs_to_the_block_before_it():
    shell, python = pages.blocks(PAGE)
    assert (shell.line, shell.kind, shell.shown) == (4, "sh", ("o...",))
    assert (python.line, python.kind, python.shown) == (14, "python", ())


@pytest.mark.parametrize("kind", ["", "toml", "bash", "text"])
def test_a_block_that_nothing_would_check_is_refused(kind):
    with pytest.raises(ValueError, match="line 2"):
        pages.blocks(f"```{kind}\nx = 1\n```\n")


def test_lines_that_are_shown_come_in_order_with_others_between():
    said = ["noise", "first line of 3", "noise", "second"]
    assert pages.missing(["first line of ...", "...", "second"], said) is None
    assert pages.missing(["second", "first line of ..."], said) == "first line of ..."
    assert pages.missing(["first line"], said) == "first line"


def test_blocks_run_in_one_shell_and_what_each_printed_is_told_apart(tmp_path):
    todo, done = ran("```sh\nx=1; echo a > f\n```\n```sh\ncat f; echo $x\n```\n" + PAGE, tmp_path)
    assert [done.said.get(block.line) for block in todo] == [
        (),
        ("a", "1"),
        ("one",),
        ("two",),
    ]
    assert (done.code, done.has_leftovers) == (0, False)


def test_a_page_ends_at_the_first_command_that_fails(tmp_path):
    _, done = ran("```sh\nfalse | cat\necho on\n```\n" + PAGE, tmp_path)
    assert (done.code, done.said) == (1, {2: ()})
    assert not done.has_leftovers


def test_what_a_page_leaves_running_is_told_and_ended(tmp_path):
    _, done = ran("```sh\nsleep 1000 &\n```\n", tmp_path)
    assert (done.code, done.has_leftovers) == (0, True)
