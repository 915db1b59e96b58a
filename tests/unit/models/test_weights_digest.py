"""Laws of weights' digests: equal for equal files, computed once, and free from the hub's cache."""

import hashlib
import os

from slipstream.models.machine import Measurements
from slipstream.models.store.digests import hub_commit, weights_digest

LARGE = 17 << 20
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_the_digest_of_one_file_is_its_own(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path, Measurements(None)) == sha256(b"weights")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"others")
    assert weights_digest(gguf, Measurements(None)) == sha256(b"others")


def test_the_digest_of_several_files_is_that_of_their_list(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
    lines = f"{sha256(b'a')}  a.safetensors\n{sha256(b'b')}  b.safetensors\n"
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


def test_a_file_of_the_hubs_cache_has_its_digest_as_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = in_blobs(tmp_path)
    assert weights_digest(snapshot, Measurements(None)) == "a" * 64
    assert hub_commit(snapshot) == COMMIT
    assert hub_commit(tmp_path) == ""


def test_a_file_elsewhere_has_the_digest_of_its_bytes_whatever_its_name_is(tmp_path):
    assert weights_digest(in_blobs(tmp_path), Measurements(None)) == sha256(b"weights")
