"""Plan, configurations and figures of `bench peers`, and llama.cpp's files; nothing is loaded."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from slipstream.bench.harness import rotated
from slipstream.bench.peers.engine import EngineAnswer, EngineProcess
from slipstream.bench.peers.figures import peers_figures
from slipstream.bench.peers.plan import (
    Configuration,
    PeerMode,
    PeersPlan,
    PromptIds,
    System,
    concurrent_configs,
    parse_concurrencies,
    parse_configs,
    parse_endpoints,
)
from slipstream.bench.peers.report import lines, page
from slipstream.bench.peers.run import BatchSample, PeersRecord
from slipstream.bench.peers.settings import (
    NotAvailable,
    PeersOptions,
    engine_settings,
    published,
    write_bfloat16,
)
from slipstream.core.errors import InvalidRequest, ModelNotFound, ServiceError, WeightsError
from slipstream.local.stack import StackPlan
from support.models.tiny_checkpoint import save_checkpoint
from support.models.tiny_gguf import finish

PROMPTS = tuple(PromptIds(n, "ab"[n % 2], tuple(range(n + 1))) for n in range(4))


def names(configs):
    return [config.name for config in configs]


def options(**values):
    given = {"target": "no-such-model", "draft": "glide", "dtype": "float32", "threads": 1}
    return PeersOptions(
        **{**given, "device": "cpu", "num_positions": 9, "stack": StackPlan(), **values}
    )


def test_no_names_are_all_configurations_endpoints_included():
    found = names(parse_configs("", {"vllm": "http://a/v1"}))
    assert found[:3] == ["hf", "hf-lookup", "hf-assistant"]
    assert "vllm" in found
    assert found[-1] == "distributed:best"
    assert len(set(found)) == len(found)


def test_requests_that_come_together_meet_all_others_but_only_plain_and_best_of_ours():
    found = names(concurrent_configs(parse_configs("", {}), ""))
    assert "glide" not in found
    assert {"hf", "llama.cpp", "plain", "best", "distributed:best"} <= set(found)


def test_what_batches_and_what_answers_one_after_another():
    by_name = {
        config.name: config.is_batching for config in parse_configs("", {"vllm": "http://a/v1"})
    }
    alone = {name for name, is_batching in by_name.items() if not is_batching}
    assert alone == {name for name in by_name if "hf-" in name or "llama" in name}


def test_an_endpoint_has_a_name_and_a_url():
    assert parse_endpoints(["vllm=http://a:1/v1/"]) == {"vllm": "http://a:1/v1"}
    for text in ("http://a/v1", "=http://a", "vllm=a", "best=http://a"):
        with pytest.raises(InvalidRequest):
            parse_endpoints([text])


@pytest.mark.parametrize("text", ["", "1,", "0", "65", "4,4", "x"])
def test_concurrencies_are_numbers_each_once(text):
    with pytest.raises(InvalidRequest):
        parse_concurrencies(text)


def test_a_level_has_whole_batches_and_goes_round_its_prompts():
    configs = parse_configs("hf,best,glide", {})
    plan = PeersPlan(PROMPTS, configs, configs[:2], (1, 3), concurrent_limit=4, warmup=2)
    one, three = plan.levels
    assert [batch[0].question_id for batch in one.batches] == [0, 1, 2, 3]
    asked = [[prompt.question_id for prompt in batch] for batch in three.batches]
    assert asked == [[0, 1, 2], [3, 0, 1]]
    assert names(three.configs) == ["hf", "best"]
    assert plan.num_steps == 3 * (2 + 4) + 2 * (2 + 2)
    assert names(rotated(configs, 4)) == ["best", "glide", "hf"]


def test_configurations_that_cannot_run_say_why():
    (assistant,) = parse_configs("hf-assistant", {})
    with pytest.raises(NotAvailable, match="--assistant names one"):
        engine_settings(assistant, options(), is_concurrent=False)
    llama = Configuration("llama.cpp", System.LLAMA_CPP)
    with pytest.raises(NotAvailable):
        engine_settings(llama, options(device="cuda"), is_concurrent=False)


def test_methods_of_one_numerics_share_an_engine_and_those_of_another_do_not():
    configs = parse_configs("plain,plain+invariant,glide,best", {})
    found = [engine_settings(config, options(), is_concurrent=False) for config in configs]
    assert found[0] != found[1]
    assert found[1] == found[2] == found[3]


def test_an_engine_that_cannot_start_says_why():
    (config,) = parse_configs("vllm", {"vllm": "http://127.0.0.1:9/v1"})
    settings = engine_settings(config, options(), is_concurrent=False)
    with pytest.raises(ServiceError, match="does not answer"):
        EngineProcess(settings)


def sample(config, number, tokens, wall_s, *, concurrency=1, text=None):
    ids = None if text is not None else tokens
    answer = EngineAnswer(len(tokens), ids, text, num_forwards=len(tokens) // 2 or None)
    prompts = (PROMPTS[number],) * concurrency
    answers = (answer,) * concurrency
    return BatchSample(config, concurrency, number, prompts, wall_s, answers, wall_s / 10)


def figures_of(record, configs, endpoints=()):
    return peers_figures(record, parse_configs(configs, dict(endpoints)), decode=str)


def test_figures_are_of_all_tokens_over_all_seconds():
    record = PeersRecord([], {"hf-assistant": "none"}, {}, True)
    for number, wall_s in enumerate((1.0, 3.0)):
        record.samples += [
            sample("hf", number, (1, 2, 3, 4), 2 * wall_s),
            sample("best", number, (1, 2, 3, 4) if number else (1, 2, 4, 4), wall_s),
            sample("plain+invariant", number, (1, 2, 3, 4), wall_s),
        ]
    figures = figures_of(record, "hf,plain+invariant,best")
    (level,) = figures["levels"]
    best = level["arms"]["best"]
    assert best["tokens_per_s"] == 2
    assert best["ratio"] == {"ratio": 2, "low": 2, "high": 2}
    assert best["tokens_per_forward"] == 2
    assert best["others_cpu_share"] == pytest.approx(0.1)
    assert best["identity"] == {"same": 1, "of": 2, "by": "tokens"}
    assert best["categories"]["b"]["tokens_per_s"] == pytest.approx(4 / 3)
    assert level["best_over"]["hf"]["ratio"] == 2
    said = lines(figures)
    assert said == ["best is 2.00x (2.00 to 2.00) of hf at 1", "skipped hf-assistant: none"]


def test_only_what_all_configurations_have_answered_counts_in_a_run_that_was_interrupted():
    record = PeersRecord([sample("hf", 0, (1,), 1.0), sample("best", 0, (1,), 1.0)])
    record.samples.append(sample("hf", 1, (1,), 9.0))
    figures = figures_of(record, "hf,best")
    assert figures["levels"][0]["batches"] == 1
    assert figures["levels"][0]["arms"]["hf"]["tokens_per_s"] == 1
    assert "interrupted" in lines(figures)[-1]


def test_a_configuration_that_failed_keeps_others_from_nothing():
    record = PeersRecord([sample("hf", 0, (1,), 1.0), sample("best", 0, (1,), 1.0)], is_whole=True)
    record.samples.append(sample("best", 1, (1,), 1.0))
    record.skip("hf", 1, "it failed: so")
    (level,) = figures_of(record, "hf,best")["levels"]
    assert list(level["arms"]) == ["best"]
    assert level["batches"] == 2
    assert level["arms"]["best"]["ratio"] is None


def test_a_configuration_is_skipped_once_for_one_reason_and_again_for_another():
    record = PeersRecord()
    for concurrency, reason in ((1, "a"), (4, "a"), (16, "b")):
        record.skip("hf", concurrency, reason)
    assert record.skipped == {"hf": "a", "hf at concurrency 16": "b"}


def test_servers_that_send_text_are_compared_by_text():
    record = PeersRecord(
        [sample("plain", 0, (1, 2), 1.0), sample("vllm", 0, (1, 2), 1.0, text="(1, 2)")]
    )
    figures = figures_of(record, "plain,vllm", {"vllm": "http://a"})
    configs = figures["levels"][0]["arms"]
    assert configs["vllm"]["identity"] == {"same": 1, "of": 1, "by": "text"}
    assert configs["plain"]["is_reference"]


def test_a_page_holds_every_table_and_what_was_measured_with():
    record = PeersRecord([sample("hf", 0, (1,), 1.0), sample("best", 0, (1,), 1.0)], is_whole=True)
    facts = {"processor": "P", "threads": 2, "platform": "L", "command": "C", "git_commit": "G"}
    text = page(figures_of(record, "hf,best"), facts)
    assert "| best | 1.0 | 1.00x | - |" in text
    assert "Measured with `C` on P, 2 threads, L; commit G." in text


@pytest.fixture
def quantised(tmp_path):
    """A GGUF file with one tensor of 4 bits and one norm."""
    path = tmp_path / "tiny.Q4_1.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(7)
    values = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    kind = GGMLQuantizationType.Q4_1
    writer.add_tensor("blk.0.ffn_down.weight", quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(32, dtype=np.float32))
    finish(writer)
    return path


def test_a_file_in_bfloat16_holds_the_same_model(quantised, tmp_path):
    write_bfloat16(quantised, tmp_path / "out.gguf")
    before, after = GGUFReader(quantised), GGUFReader(tmp_path / "out.gguf")
    assert after.fields["llama.block_count"].contents() == 7
    matrix, norm = after.tensors
    assert matrix.tensor_type is GGMLQuantizationType.BF16
    assert norm.tensor_type is GGMLQuantizationType.F32
    meant = dequantize(before.tensors[0].data, before.tensors[0].tensor_type)
    found = dequantize(matrix.data, matrix.tensor_type)
    assert np.allclose(found, meant, rtol=2**-8, atol=0)
    assert np.array_equal(norm.data, before.tensors[1].data)


def test_a_file_of_another_model_is_refused(quantised, tmp_path):
    target = save_checkpoint(tmp_path / "tiny")
    assert published(str(target), quantised) == quantised  # a norm of ones, as new models have
    writer = GGUFWriter(tmp_path / "other.gguf", "llama")
    writer.add_tensor("output_norm.weight", np.full(32, 2, dtype=np.float32))
    finish(writer)
    with pytest.raises(WeightsError, match="other weights than tiny"):
        published(str(target), tmp_path / "other.gguf")
    with pytest.raises(ModelNotFound, match="--gguf names one"):
        published(str(target))


def test_lookup_is_a_mode_of_the_same_system():
    (lookup,) = parse_configs("llama.cpp-bf16-lookup", {})
    assert (lookup.system, lookup.mode, lookup.is_full) == (System.LLAMA_CPP, PeerMode.LOOKUP, True)
