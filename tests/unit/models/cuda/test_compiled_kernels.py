"""Kernels are compiled for GPUs, also where there is none."""

import subprocess
import sys

import pytest

from support.commands import ROOT

pytest.importorskip("triton")
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream.models.cuda import attention_kernels, chain_kernels, draw_kernels, kernels

NUMBERS = {"scale": "fp32", "eps": "fp32", "slots": "*i64"}
NUMBERS |= dict.fromkeys(("num_pages", "num_slots", "num_keys", "size", "span", "turned"), "i32")
NUMBERS |= dict.fromkeys(("num_rules", "num", "width", "half", "num_sessions", "num_heads"), "i32")
NUMBERS |= dict.fromkeys(("vocab", "steps"), "*i64") | dict.fromkeys(("first", "stats"), "*fp32")
NUMBERS |= dict.fromkeys(("rules", "state", "into", "numbers", "limits"), "*fp64")
NUMBERS |= dict.fromkeys(("ranges", "edits", "places", "columns"), "*i32")
NUMBERS |= {"num_bytes": "i32", "masks": "*u8", "others": "*i64"}
NAMES = {
    attention_kernels: ("attend_spans", "add_spans"),
    kernels: ("add_norm", "place", "read_states", "finish"),
    draw_kernels: "find_tops find_bests find_tokens mask_out edit find_scores leave_out".split(),
    chain_kernels: ("read_parts", "read_row"),
}
INDICES, PLACES = ("keys", "tokens", "tiles", "nums"), "tables counts seen starts paths".split()
SIZES = {"GROUP": 4, "WIDTH": 128, "PLACES": 16, "SPANS": 16}
SIZES |= {"ADDS": 8, "NORMS": True, "BLOCK": 1024, "PARTS": 32, "NUM": 8, "SIZE": 256, "FIRST": 2}
WIDE = ("scales", "sums", "peaks", "totals", "tops", "scores", "masses", "heats")
NUMBERS |= dict.fromkeys(INDICES, "*i32") | dict.fromkeys(WIDE, "*fp32")
ROUNDS = ("attend_spans", "add_spans", "add_norm", "finish")
for dtype, others, rounds in (("bf16", False, False), ("fp32", True, False), ("bf16", True, True)):
    sizes = {**SIZES, "WIDE": dtype == "fp32", "OTHERS": others, "ROUNDS": rounds}
    sizes |= {"GATES": dtype == "bf16", "HEADS": 64 if rounds else 4}
    NUMBERS["layer"] = "*i64" if others else "*" + dtype
    NUMBERS |= dict.fromkeys(PLACES, "*i64" if others else "*i32")  # chains have wide ones
    for module, name in ((module, name) for module, names in NAMES.items() for name in names):
        if rounds and name not in ROUNDS:
            continue
        kernel = getattr(module, "_" + name)
        own = {name: sizes[name] for name in kernel.arg_names if name in sizes}
        types = {name: NUMBERS.get(name, "*" + dtype) for name in kernel.arg_names}
        types |= dict.fromkeys(own, "constexpr") | ({"out": "*fp32"} if name == "read_row" else {})
        types |= {"layer": "*" + dtype} if name == "place" else {}
        types |= {"out": "*fp8e4nv"} if rounds and "out" in types else {}
        source = ASTSource(fn=kernel, signature=types, constexprs=own)
        options = {"enable_fp_fusion": True, "num_warps": 16 if rounds else 4}
        for version in (89 if rounds else 80, 90):
            made = triton.compile(source, target=GPUTarget("cuda", version, 32), options=options)
            assert made.metadata.shared < 99 << 10
"""


def test_the_kernels_compile_for_gpus_and_fit_their_memory(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
