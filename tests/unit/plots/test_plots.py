"""Plots: what is written, and what is refused."""

import sys

import pytest

from slipstream.core.errors import TrainingError
from slipstream.plots import save_plot

NAMES = {"title": "Loss", "x": "step", "y": "nats"}


def line(axes):
    axes.plot([0, 1, 2], [3.0, 2.0, 1.5], label="held-out loss")


@pytest.mark.parametrize(
    ("name", "magic"), [("a.png", b"\x89PNG"), ("b.svg", b"<?xml"), ("C.PNG", b"\x89PNG")]
)
def test_the_suffix_decides_the_format(tmp_path, name, magic):
    save_plot(tmp_path / "plots" / name, line, **NAMES)
    assert (tmp_path / "plots" / name).read_bytes().startswith(magic)
    assert [path.name for path in (tmp_path / "plots").iterdir()] == [name]


def test_title_axes_and_legend_say_what_is_drawn(tmp_path):
    drawn = []

    def draw(axes):
        line(axes)
        drawn.append(axes)

    save_plot(tmp_path / "a.svg", draw, **NAMES)
    (axes,) = drawn
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Loss", "step", "nats")
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["held-out loss"]
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1, "it covers the data"


def test_what_is_not_labelled_gets_no_legend(tmp_path):
    drawn = []
    save_plot(tmp_path / "a.png", lambda axes: drawn.extend(axes.plot([0, 1], [1, 0])), **NAMES)
    assert drawn[0].figure.legends == []


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.gz"])
def test_another_suffix_is_refused_before_anything_is_drawn(tmp_path, name):
    with pytest.raises(TrainingError, match=r"\.png or \.svg"):
        save_plot(tmp_path / name, pytest.fail, **NAMES)


def test_a_plot_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def draw(axes):
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        save_plot(path, draw, **NAMES)
    assert path.read_bytes() == b"old"


def test_where_matplotlib_is_missing_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TrainingError, match=r"pip install 'slipstream\[train\]'"):
        save_plot(tmp_path / "a.png", line, **NAMES)
    assert not (tmp_path / "a.png").exists()
