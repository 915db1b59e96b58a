"""All that a GGUF file has is read, changes nothing, or is refused by its name."""

import numpy as np
import pytest

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.loading import causal_model, load_model
from slipstream.models.torch.loading import load_target_parts
from support.models import tiny, tiny_gguf
from support.models.families import FIELD_CASES

SMALL = 64
"""Elements of a hidden state where nothing is computed."""
TOKENS = [(at * 37 + 5) % 259 for at in range(24)]
VALUES, NEUTRAL = FIELD_CASES["gguf_values"], FIELD_CASES["gguf_neutral"]
"""Fields with values that would change an answer, and that do not."""
TENSORS = ("blk.0.post_attention_norm.weight", "blk.1.ffn_gate_exps.weight", "blk.0.attn_sinks")
YARN = {"type": "yarn", "factor": 4.0, "yarn_ext_factor": 0.0}
UNREAD = {
    **{f"has {{family}}.{name} of": {f"{{family}}.{name}": VALUES[name]} for name in VALUES},
    **{f"has a tensor {it}, which is not": {it: np.ones(SMALL)} for it in (*TENSORS, "cls")},
    **{rf"is F32 \[{n}\], but .* \[8\]": {"rope_freqs.weight": np.ones(n)} for n in (4, 33)},
    "of the type 'adapter', not of a model": {"general.type": "adapter"},
    "has rope.rope_theta of 0.0": {"{family}.rope.freq_base": 0.0},
    "has {family}.rope.scaling.yarn_ext_factor of 0.0": {
        f"{{family}}.rope.scaling.{name}": value for name, value in YARN.items()
    },
}


def f32(name):
    return "F32"


def small(path, family="llama", **more):
    return tiny_gguf.write(path, f32, family, SMALL, more=more)


def model_of(path, **options):
    return causal_model(load_model(str(path), **options).model)


def hidden(model, tokens=TOKENS):
    return np.asarray(tiny.whole(model, tokens)[0], np.float32)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "plain.gguf", f32)
    return path, hidden(model_of(path))


@pytest.mark.parametrize("words", UNREAD)
def test_what_is_not_read_and_would_change_answers_is_refused_by_its_name(words, tmp_path):
    family = ("llama", "qwen2", "qwen3")[len(words) % 3 if "{family}" in words else 0]
    fields = {name.format(family=family): value for name, value in UNREAD[words].items()}
    path = small(tmp_path / "odd.gguf", family, **fields)
    for dtype in ("auto", "float32"):
        with pytest.raises(WeightsError, match=rf"odd\.gguf .*{words.replace('{family}', family)}"):
            load_model(str(path), dtype=dtype)


def test_fields_at_neutral_values_change_nothing(plain, tmp_path):
    fields = {"general.note": "x", **{f"llama.{name}": NEUTRAL[name] for name in NEUTRAL}}
    path = tiny_gguf.write(tmp_path / "same.gguf", f32, more=fields)
    assert np.array_equal(hidden(model_of(path)), plain[1])


FACTORS = np.geomspace(1, 8, SMALL // 8, dtype=np.float32)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 0.25),
        ({"llama.rope.scaling.factor": 4.0}, 0.25),
        ({"llama.rope.scale_linear": 2.0}, 0.5),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1.0),
        ({"rope_freqs.weight": FACTORS}, 1 / FACTORS),
    ],
)
def test_rotary_frequencies_are_scaled_and_divided_as_the_file_says(fields, expected, tmp_path):
    path = small(tmp_path / "rope.gguf", **fields)
    plain = 10000.0 ** (-np.arange(0, SMALL // 4, 2) / (SMALL // 4))
    for dtype in ("auto", "float32", "bfloat16"):
        found = load_model(str(path), dtype=dtype).model.rotaries[0].inv_freq
        np.testing.assert_allclose(found / plain, expected * np.ones(len(plain)), rtol=1e-5)
    torch_model = load_target_parts(str(path), dtype="float32").model
    np.testing.assert_allclose(torch_model.model.rotary_emb.inv_freq.numpy(), found, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_refused_with_its_tensor(bad, tmp_path):
    bias = np.zeros(512, np.float32)
    bias[7] = bad
    path = small(tmp_path / "odd.gguf", **{"blk.1.ffn_up.bias": bias})
    with pytest.raises(
        ModelError, match=r"blk\.1\.ffn_up\.bias of type F32 has weights that are no"
    ):
        model_of(path)


def test_other_architectures_are_named(tmp_path):
    path = small(tmp_path / "b.gguf", "mamba")
    with pytest.raises(WeightsError, match="of the architecture 'mamba', but those that can"):
        load_model(str(path))


@pytest.mark.parametrize("given", [1, 2])
def test_a_split_model_loads_by_any_of_its_parts(given, plain, tmp_path):
    one, other = split(plain[0], tmp_path)
    assert np.array_equal(hidden(model_of((one, other)[given - 1])), plain[1])
    (link := tmp_path.parent / f"{tmp_path.name}.gguf").symlink_to((one, other)[given - 1])
    assert np.array_equal(hidden(model_of(link)), plain[1])
    assert np.array_equal(hidden(model_of(tmp_path)), plain[1])
    other.write_bytes(one.read_bytes().replace(b"split.no\x02\0\0\0\0", b"split.no\x02\0\0\0\1"))
    with pytest.raises(WeightsError, match="as a part before it"):
        load_model(str(one))
    other.unlink()
    with pytest.raises(WeightsError, match=r"part 1 of 2 of a split model"):
        load_model(str(one))


def split(path, folder):
    """The two parts of a file, each with half of its tensors."""
    from gguf import GGUFReader, GGUFWriter

    whole = GGUFReader(path)
    parts = [folder / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    half = len(whole.tensors) // 2
    for number, (part, own) in enumerate(
        zip(parts, (whole.tensors[:half], whole.tensors[half:]), strict=True)
    ):
        writer = GGUFWriter(part, "llama")
        for field in whole.fields.values() if number == 0 else ():
            if not field.name.startswith(("GGUF.", "general.architecture")):
                writer.add_key_value(field.name, field.contents(), field.types[0], *field.types[1:])
        for name, value in (("no", number), ("count", 2)):
            writer.add_uint16(f"split.{name}", value)
        for tensor in own:
            writer.add_tensor(tensor.name, tensor.data)
        tiny_gguf.finish(writer)
    return parts
