"""vLLM's names on the page for Prometheus: the same values, and nothing that is not known."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry import catalog
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.setup import Process, telemetry
from support.network.ports import free_port
from support.telemetry.prometheus_tool import promtool

MODEL = {"gen_ai.request.model": "m", "gen_ai.operation.name": "chat"}


def page(say, **options):
    port = free_port()
    config = TelemetryConfig(metrics_address=f"127.0.0.1:{port}", **options)
    with telemetry(config, Process("router", "1", 1)) as listening:
        say(listening.instruments)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()


def series(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created")) and sample.name != "target_info"
    }


def say(instruments):
    instruments.put(catalog.REQUESTS_RUNNING, 3)
    instruments.record(catalog.FIRST_TOKEN, 0.25, MODEL)
    instruments.record(catalog.REQUEST_DURATION, 1.0, MODEL)
    instruments.record(catalog.REQUEST_DURATION, 9.0, {**MODEL, "error.type": "timeout"})
    for kind, count in (("speculative", 5), ("plain", 2)):
        instruments.add(catalog.ROUNDS, count, {"kind": kind})
    instruments.add(catalog.POSITION_ACCEPTED, 4, {"position": "1"})
    instruments.put(catalog.WAITING, 2)
    instruments.put(catalog.KV_USED, 25)
    instruments.put(catalog.KV_CAPACITY, 100)


EXPECTED = {
    ("vllm:num_requests_running",): 3,
    ("vllm:num_requests_waiting",): 2,
    ("vllm:kv_cache_usage_perc",): 0.25,
    ("vllm:time_to_first_token_seconds_count", ("model_name", "m")): 1,
    ("vllm:time_to_first_token_seconds_sum", ("model_name", "m")): 0.25,
    ("vllm:e2e_request_latency_seconds_count", ("model_name", "m")): 1,
    ("vllm:e2e_request_latency_seconds_sum", ("model_name", "m")): 1.0,
    ("vllm:spec_decode_num_drafts_total",): 5,
    ("vllm:spec_decode_num_accepted_tokens_per_pos_total", ("position", "0")): 4,
}


def test_known_figures_have_vllm_s_names_too_and_their_own_as_before():
    plain, both = series(page(say)), series(page(say, vllm_metrics=True))
    assert {key: both[key] for key in plain} == plain
    assert {key: both[key] for key in both.keys() - plain.keys()} == EXPECTED


def test_buckets_are_those_of_the_metric():
    text = page(say, vllm_metrics=True)
    lines = [line for line in text.splitlines() if "time_to_first_token_seconds_bucket" in line]
    ours, theirs = ([at for at in lines if at.startswith(name)] for name in ("gen_ai", "vllm:"))
    assert len(ours) == len(theirs) > 10


def test_promtool_has_nothing_to_say_of_the_names():
    text = page(say, vllm_metrics=True)
    promtool("check", "metrics", text=text.replace("vllm:", "vllm_"))  # the colon is vLLM's


def test_names_without_a_page_are_refused():
    with pytest.raises(InvalidRequest, match="no metrics_address to serve them at"):
        TelemetryConfig(vllm_metrics=True)
