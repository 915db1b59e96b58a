"""The tables that the papers published, as far as experiments here stand beside them. Data."""

from slipstream.bench.papers.experiment import Table


def _table(title: str, *lines: str) -> Table:
    """Cells are set apart by bars; the first line has the heads."""
    heads, *rows = (tuple(cell.strip() for cell in line.split("|")) for line in lines)
    return Table(title, heads, tuple(rows))


FIGURE_4 = _table(
    "Figure 4: acceptance in points, vanilla + what cross-attention adds",
    "target | GSM8K | Finance-Alpaca | Spider | Code-Python",
    "Vicuna-7B | 35.6 + 20.7 | 41.5 + 14.9 | 28.9 + 20.1 | 42.9 + 14.4",
    "Vicuna-13B | 34.9 + 23.5 | 41.4 + 16.7 | 27.1 + 11.3 | 42.2 + 17.1",
    "Vicuna-33B | 51.4 + 10.3 | 45.9 + 23.5 | 41.1 + 13.5 | 54.1 + 5.4",
)
FIGURE_7 = _table(
    "Figure 7: acceptance in points by the layer of Mistral-7B that is read (off the plot)",
    "data | none | 1 | 4 | 16 | 24 | 32",
    "GSM8K | 37 | 37 | 52 | 48 | 57 | 60",
    "Code-Python | 44 | 46 | 57 | 55 | 62 | 63",
    "Spider | 42 | 41 | 52 | 53 | 57 | 60",
    "Finance-Alpaca | 40 | 41 | 48 | 51 | 55 | 56",
)
GLIDE_TABLE_1 = _table(
    "Table 1: acceptance in points / expected speed-up, chains of 5, speculative sampling",
    "target | draft | c | GSM8K | Finance-Alpaca | Spider | Code-Python",
    "Vicuna-7B | LLaMA-68m | 7.7% | 51.6 / 1.46 | 49.7 / 1.41 | 19.2 / 0.89 | 34.8 / 1.11",
    "Vicuna-7B | GliDe | 6.7% | 64.8 / 1.97 | 63.2 / 1.90 | 55.7 / 1.64 | 67.0 / 2.06",
    "Vicuna-13B | LLaMA-68m | 6.2% | 50.2 / 1.51 | 49.3 / 1.48 | 19.0 / 0.94 | 32.7 / 1.13",
    "Vicuna-13B | GliDe | 5.5% | 67.1 / 2.16 | 65.0 / 2.07 | 57.1 / 1.77 | 68.6 / 2.24",
    "Vicuna-33B | LLaMA-68m | 4.6% | 49.1 / 1.57 | 46.5 / 1.50 | 30.0 / 1.16 | 31.5 / 1.19",
    "Vicuna-33B | GliDe | 6.8% | 69.3 / 2.16 | 64.3 / 1.94 | 62.7 / 1.87 | 68.9 / 2.14",
)
GLIDE_TABLE_5 = _table(
    "Table 5: measured speed over plain decoding",
    "target | draft | GSM8K | Finance-Alpaca | Spider | Code-Python",
    "Vicuna-7B | LLaMA-68m | 1.53 | 1.48 | 0.95 | 1.02",
    "Vicuna-7B | GliDe | 1.90 | 1.94 | 1.69 | 2.11",
    "Vicuna-13B | LLaMA-68m | 1.54 | 1.57 | 0.94 | 1.17",
    "Vicuna-13B | GliDe | 2.32 | 2.07 | 1.82 | 2.35",
    "Vicuna-33B | LLaMA-68m | 1.56 | 1.47 | 1.07 | 1.19",
    "Vicuna-33B | GliDe | 2.27 | 2.02 | 1.95 | 2.14",
)
CAPE_FIGURE_6 = _table(
    "Figure 6: measured speed over plain decoding, MT-Bench, greedy",
    "target | Medusa | GliDe | GliDe + beam of 4 | GliDe + CaPE",
    "Vicuna-7B | 2.0 | 2.0 | 1.9 | 2.6",
    "Vicuna-13B | 1.9 | 2.2 | 2.2 | 2.6",
    "Vicuna-33B | 1.9 | 1.9 | 2.2 | 2.5",
)
CAPE_TABLE_3 = _table(
    "Table 3: milliseconds of drafting per round",
    "target | GliDe | + beam of 4 | + beam of 8 | + CaPE",
    "Vicuna-7B | 5.3 | 10.9 | 14.8 | 5.5",
    "Vicuna-13B | 5.3 | 10.9 | 14.9 | 5.5",
    "Vicuna-33B | 9.1 | 17.1 | 24.6 | 8.9",
)
EAGLE2_TABLE_1 = _table(
    "EAGLE-2: speed over plain decoding / tau, mean of six tasks, greedy",
    "target | EAGLE | EAGLE-2",
    "Vicuna-7B | 2.78 / 3.79 | 3.39 / 4.68",
    "Vicuna-13B | 2.95 / 3.82 | 4.04 / 4.65",
    "LLaMA-2-7B | 2.78 / 3.71 | 3.43 / 4.64",
    "LLaMA-2-13B | 3.09 / 3.89 | 4.10 / 4.68",
)
SVIP_ON_EAGLE2 = _table(
    "SVIP on EAGLE-2: speed over plain decoding, mean of six tasks",
    "target | EAGLE-2 | EAGLE-2 + SVIP",
    "LLaMA-2-7B | 3.10 | 3.16",
    "LLaMA-2-13B | 3.41 | 3.46",
    "Vicuna-7B | 2.58 | 2.73",
    "Vicuna-13B | 2.83 | 2.98",
)
SVIP_GREEDY = _table(
    "Speed over plain decoding by category of Spec-Bench, greedy",
    "models | policy | MT-Bench | translation | summaries | QA | maths | RAG | mean",
    "Pythia 6.9B/160M | constant | 1.45 | 1.47 | 1.24 | 1.43 | 1.52 | 1.42 | 1.42",
    "Pythia 6.9B/160M | heuristic | 1.51 | 1.58 | 1.34 | 1.58 | 1.64 | 1.51 | 1.53",
    "Pythia 6.9B/160M | SVIP | 1.63 | 1.62 | 1.45 | 1.67 | 1.72 | 1.66 | 1.63",
    "Qwen2.5 14B/0.5B | constant | 1.08 | 0.87 | 1.11 | 0.92 | 1.43 | 0.99 | 1.07",
    "Qwen2.5 14B/0.5B | heuristic | 1.10 | 0.91 | 1.10 | 0.92 | 1.34 | 1.03 | 1.07",
    "Qwen2.5 14B/0.5B | SVIP | 1.33 | 1.12 | 1.37 | 1.14 | 1.57 | 1.23 | 1.29",
    "LLaMA-3 70B/8B | constant | 2.04 | 2.48 | 2.56 | 2.34 | 2.32 | 2.28 | 2.34",
    "LLaMA-3 70B/8B | heuristic | 2.30 | 3.13 | 3.33 | 2.61 | 2.52 | 2.63 | 2.76",
    "LLaMA-3 70B/8B | SVIP | 2.31 | 3.04 | 3.48 | 2.63 | 2.89 | 2.59 | 2.83",
)
SVIP_SAMPLED = _table(
    "The same at temperature 1, means",
    "models | constant | heuristic | SVIP",
    "Pythia 6.9B/160M | 0.65 | 0.83 | 1.02",
    "Qwen2.5 14B/0.5B | 0.96 | 0.99 | 1.20",
    "LLaMA-3 70B/8B | 1.60 | 1.58 | 1.58",
)
SVIP_STATISTICS = _table(
    "Drafted tokens a round / accepted share of them, greedy",
    "models | constant | heuristic | SVIP",
    "Qwen2.5 14B/0.5B | 5 / 53 to 61% (maths 82%) | 5 to 11 / 51 to 68% | 2.4 to 6.5 / 79 to 89%",
    "LLaMA-3 70B/8B | 5 / 79 to 96% | 9 to 19 / 72 to 93% | 4.5 to 16.5 / 94 to 99%",
)
SVIP_ON_GLIDE = _table(
    "SVIP on GliDe: speed over plain decoding, means",
    "target | GliDe | + SVIP | GliDe + CaPE | + SVIP",
    "Vicuna-7B | 1.95 | 2.02 | 2.40 | 2.52",
    "Vicuna-13B | 2.24 | 2.28 | 2.73 | 2.76",
    "Vicuna-33B | 2.18 | 2.30 | 2.03 | 2.08",
)
SVIP_LONG = _table(
    "Speed over plain decoding by length of the output, MT-Bench, temperature 1",
    "models | policy | 128 | 256 | 512 | 1K | 2K | 4K",
    "Pythia | constant | 0.68 | 0.69 | 0.69 | 0.70 | 0.72 | 0.90",
    "Pythia | heuristic | 0.88 | 0.88 | 0.88 | 0.88 | 0.90 | 1.21",
    "Pythia | SVIP | 1.07 | 1.08 | 1.08 | 1.07 | 1.08 | 1.43",
    "Qwen2.5 | constant | 0.98 | 0.97 | 0.95 | 0.96 | 0.98 | 1.00",
    "Qwen2.5 | heuristic | 1.01 | 0.99 | 0.98 | 1.00 | 1.02 | 1.03",
    "Qwen2.5 | SVIP | 1.29 | 1.29 | 1.30 | 1.31 | 1.32 | 1.33",
    "LLaMA-3 | constant | 1.74 | 1.74 | 1.77 | 1.78 | 1.82 | 1.90",
    "LLaMA-3 | heuristic | 1.53 | 1.56 | 1.61 | 1.63 | 1.68 | 1.77",
    "LLaMA-3 | SVIP | 1.69 | 1.72 | 1.75 | 1.78 | 1.86 | 1.96",
)
DECISION_WIDTHS = _table(
    "MT-Bench, greedy, LLaMA-68M / Llama-2-7B: tokens/s by number of branches",
    " | 4 | 8 | 12 | 16 | 21 | 22",
    "with the decision model | 116.5 | 141.1 | 148.0 | 156.7 | 158.0 | 132.6",
    "without | 116.7 | 146.3 | 150.2 | 158.8 | 159.5 | 133.8",
)
MCSD_SPEED = _table(
    "As measured again by Improving MCSD: speed over plain decoding, temperature 0.7",
    "models | single, 4 tokens | MCSD 4x2x2x1",
    "LLaMA-68M / Llama-2-7B-chat | 1.34 | 1.49",
    "LLaMA-68M / Vicuna-7B | 1.40 | 1.61",
    "TinyLlama-1.1B / Llama-2-7B-chat | 1.06 | 1.21",
    "TinyLlama-1.1B / Vicuna-7B | 1.03 | 1.20",
)
MCSD_ACCEPTANCE = _table(
    "The same: acceptance rate, LLaMA-68M / Llama-2-7B-chat",
    "single, 4 tokens | MCSD 4x2x2x1",
    "0.15 to 0.20 | 0.21 to 0.34",
)
TARGET_INIT_SPEED = _table(
    "Released results: speed over plain decoding, temperature 0.7",
    "models | MCSD 4x2x2x1 | static 2x4x4x1x1 | branches (lossy)",
    "LLaMA-68M / Llama-2-7B-chat | 1.49 | 1.90 | 2.69",
    "LLaMA-68M / Vicuna-7B | 1.61 | 1.75 | 2.75",
    "TinyLlama-1.1B / Llama-2-7B-chat | 1.21 | 1.21 | 1.45",
    "TinyLlama-1.1B / Vicuna-7B | 1.20 | 1.21 | 1.46",
)
