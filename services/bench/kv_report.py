"""Streaming of keys and values as tables for people. The numbers are made elsewhere."""

from rich.table import Table

from slipstream.bench.kv import KvReport
from slipstream.bench.report import fixed, table


def streams_table(report: KvReport, snapshot_bytes: int) -> Table:
    """Speed of the stream, alone and beside rounds."""
    rows = table(f"snapshots of {snapshot_bytes / 1e6:.1f} MB", "MB/s", "snapshots", "seconds")
    for name, of in (("alone", report.stream_alone), ("beside rounds", report.stream_beside)):
        rows.add_row(name, fixed(of.mb_per_s, 0), fixed(of.num_snapshots, 1), fixed(of.seconds, 1))
    return rows


def rounds_table(report: KvReport) -> Table:
    """Rounds of another session, alone and beside the stream."""
    heads = ("rounds", "median ms", "p99 ms", "largest ms", "engine ms")
    rows = table("rounds of another session", *heads, "queue ms", "longest queue ms")
    for name, of in (("alone", report.rounds_alone), ("beside the stream", report.rounds_beside)):
        seconds = (of.median_s, of.p99_s, of.max_s, of.median_engine_s, of.median_queue_s)
        cells = [fixed(1000 * value, 3) for value in (*seconds, of.max_queue_s)]
        rows.add_row(name, str(of.num_rounds), *cells)
    return rows
