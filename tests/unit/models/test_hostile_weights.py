"""A broken or hostile model file gives one sentence: no crash, no hang, no gigantic allocation."""

import json
import struct

import pytest

from fuzz.files.child import LOADED, REFUSED
from fuzz.files.runner import Child
from support.models import tiny_checkpoint, tiny_gguf

MEMORY = 1 << 30


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Intact files to break: a GGUF file and a directory."""
    folder = tmp_path_factory.mktemp("good")
    checkpoint = tiny_checkpoint.save_checkpoint(folder / "checkpoint")
    return {
        "gguf": tiny_gguf.write(folder / "tiny.gguf", lambda _: "F32", hidden=32),
        "safetensors": checkpoint,
    }


@pytest.fixture(scope="module")
def load(good):
    """Load a target in a process with little memory; one that dies or hangs fails the test."""
    process = Child(MEMORY)

    def load(path):
        kinds = ("GGUF target", "safetensors for torch")
        found = [process.load(kind, path=path) for kind in kinds]
        return next((each for each in found if each[0] != LOADED), found[0])

    assert [load(path)[0] for path in good.values()] == [LOADED] * len(good)
    yield load
    process.close()


def require_sentence(outcome):
    came, sentence = outcome
    assert came == REFUSED, outcome
    assert len(sentence) < 500, outcome
    return sentence


def text(value):
    return struct.pack("<Q", len(value)) + value


def head(num_tensors, num_fields):
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields)


ARCHITECTURE = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
TENSOR = head(1, 1) + ARCHITECTURE + text(b"token_embd.weight")
ROOM = b"\0" * 4096
GGUFS = {
    "fields": head(0, 2**63),
    "tensors": head(2**63, 1) + ARCHITECTURE,
    "numbers": head(0, 2) + ARCHITECTURE + text(b"x") + struct.pack("<IIQ", 9, 4, 2**60),
    "strings": head(0, 2) + ARCHITECTURE + text(b"x") + struct.pack("<IIQ", 9, 8, 2**60) + ROOM,
    "empty strings": head(0, 2)
    + (ARCHITECTURE + text(b"x") + struct.pack("<IIQ", 9, 8, 2**24) + bytes(2**27)),
    "nesting": head(0, 2) + ARCHITECTURE + text(b"x") + struct.pack("<IIQ", 9, 9, 1) * 100_000,
    "a long string": head(0, 1) + struct.pack("<Q", 2**62) + ROOM,
    "sizes": TENSOR + struct.pack("<I4QIQ", 4, *[2**32] * 4, 0, 0) + ROOM,
    "dimensions": TENSOR + struct.pack("<I", 2**32 - 1) + ROOM,
    "an offset": TENSOR + struct.pack("<IQIQ", 1, 32, 0, 2**63) + ROOM,
    "nothing": b"",
}


@pytest.mark.parametrize("name", GGUFS)
def test_a_gigantic_number_in_a_gguf_header_is_refused(load, tmp_path, name):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(GGUFS[name])
    require_sentence(load(path))


DEEP = "[" * 100_000 + "]" * 100_000


def folder(tmp_path, files):
    """A model's directory with some files of another content, or without those of None."""
    path = tiny_checkpoint.save_checkpoint(tmp_path / "checkpoint")
    for name, content in files.items():
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def weights(header):
    header = header if isinstance(header, str) else json.dumps({"x": header})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(64)


def index(content):
    return {"model.safetensors": None, "model.safetensors.index.json": content}


FOLDERS = {
    "a header's length": {"model.safetensors": struct.pack("<Q", 2**63) + b"{}"},
    "a header's nesting": {"model.safetensors": weights(f'{{"x":{DEEP}}}')},
    **{
        f"a tensor {shape} at {at}": {
            "model.safetensors": weights({"dtype": "F32", "shape": shape, "data_offsets": at})
        }
        for shape, at in (
            *(([2**40, 2**40], [0, 64]), ([16], [2**62, 2**63]), ([16], [0, 65])),
            *(([-1], [0, 64]), ([1], [8, 4]), ([4], [0, 64])),
        )
    },
    **{
        f"{size} bytes of a header": {"model.safetensors": weights('{"x":{"dtype":"F32"}}')[:size]}
        for size in (4, 20)
    },
    "a header of another kind": {"model.safetensors": weights("[]")},
    "a tensor of another kind": {"model.safetensors": weights(1)},
    "an index's nesting": index(f'{{"x":{DEEP}}}'),
    "lists in an index": index('{"weight_map": {"x": ["y"]}}'),
    "numbers in an index": index('{"weight_map": {"x": 3}}'),
    "an index of files elsewhere": index('{"weight_map": {"x": "../model.safetensors"}}'),
    "a configuration's nesting": {"config.json": f'{{"model_type": "llama", "x": {DEEP}}}'},
    "a generation configuration's nesting": {"generation_config.json": f'{{"x": {DEEP}}}'},
    "a tokenizer's nesting": {"tokenizer.json": f'{{"x": {DEEP}}}'},
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_hostile_file_of_a_directory_is_refused(load, tmp_path, name):
    require_sentence(load(folder(tmp_path, FOLDERS[name])))


@pytest.mark.parametrize("layers", [-1, 0, 1025, 2**32 - 1, 10**12])
def test_layers_that_no_model_has_are_refused(load, good, tmp_path, layers):
    config = json.loads((good["safetensors"] / "config.json").read_text())
    path = folder(tmp_path, {"config.json": json.dumps({**config, "num_hidden_layers": layers})})
    assert f"has {layers} layers, but 1 to 1024" in require_sentence(load(path))
    if 0 <= layers < 2**32:
        data, key = bytearray(good["gguf"].read_bytes()), b"llama.block_count"
        struct.pack_into("<I", data, data.index(key) + len(key) + 4, layers)
        path = tmp_path / "hostile.gguf"
        path.write_bytes(data)
        assert f"has {layers} layers, but 1 to 1024" in require_sentence(load(path))
