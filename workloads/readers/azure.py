"""Azure LLM inference traces: CSV with a time, prompt tokens and output tokens per row.

Source: Azure/AzurePublicDataset (CC-BY 4.0), Patel et al., "Splitwise", ISCA 2024. The multimodal
trace of 2025 has ``NumImages`` too, which is ignored: its tokens are in ContextTokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from sim.errors import TraceError, shown
from workloads.readers.csv_table import Column, datetime_ns, read_csv, time_ns, whole
from workloads.readers.format import Format, has_all, has_only
from workloads.readers.recording import Recording, record

PUBLISHED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
REDUCED = ("t_s", "input_tokens", "output_tokens")


def read_azure(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read an Azure CSV, gzip or plain, in either of two layouts.

    ``TIMESTAMP,ContextTokens,GeneratedTokens`` is the published one: date and time with up to nine
    decimals, UTC unless an offset is given; further columns are ignored, and a note says so.
    ``t_s,input_tokens,output_tokens`` is the reduced one: seconds; no further columns, since a
    session column would mean that ``t_s`` is not one clock. Arrivals count from the earliest row.
    Raises TraceError, naming file, line and column, for anything else; with ``skip_bad_rows`` bad
    rows are counted instead (a bad header or a damaged file still raises).
    """
    layout: tuple[str, str, str] = PUBLISHED

    def columns_of(names: list[str]) -> Sequence[Column]:
        nonlocal layout
        layout = find_layout(names)
        time_name, prompt_name, output_name = layout
        time = time_ns(time_name, "s", is_time=True)
        return (
            datetime_ns(time_name) if layout == PUBLISHED else time,
            whole(prompt_name, 1),
            whole(output_name),
        )

    table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    time_name, prompt_name, output_name = layout
    return record(
        table.values[time_name],
        table.values[prompt_name],
        table.values[output_name],
        source=f"{path.name} (azure)",
        skipped_rows=table.skipped_rows,
        notes=table.notes,
    )


def find_layout(names: list[str]) -> tuple[str, str, str]:
    """Return the names of the time, prompt and output columns.

    Raises TraceError if neither layout fits.
    """
    if set(PUBLISHED) <= set(names):
        return PUBLISHED
    if set(REDUCED) == set(names):
        return REDUCED
    nearest = PUBLISHED if set(PUBLISHED) & set(names) else REDUCED
    missing = [name for name in nearest if name not in names]
    fault = f"{', '.join(missing)} missing" if missing else "unexpected columns"
    expected = f"expected {','.join(PUBLISHED)} or {','.join(REDUCED)}"
    raise TraceError(f"{fault} in {shown(','.join(names))}; {expected}")


def _matches(names: Collection[str]) -> bool:
    return has_all(PUBLISHED)(names) or has_only(REDUCED)(names)


FORMAT = Format(
    name="azure",
    description=f"CSV with {','.join(PUBLISHED)} or {','.join(REDUCED)}",
    read=read_azure,
    matches_header=_matches,
)
