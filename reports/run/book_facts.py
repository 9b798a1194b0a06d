"""The books of a run as rows: where its seconds and a GPU's bytes went."""

from __future__ import annotations

from typing import Any, NamedTuple

from reports.facts import Summary, account_rows, section
from reports.parts import Column
from reports.words import byte_size, duration, humanised, is_number, percent
from sim.accounts import TIME_ACCOUNTS

_BOOKS = {
    "GPU time, all steps": "step_accounts_s",
    "E2E, mean": "e2e_accounts_s",
    "TTFT, mean": "ttft_accounts_s",
}


class ByteRow(NamedTuple):
    """One account of a GPU's memory."""

    label: str
    size: str
    num_bytes: str
    share: float | None


def account_table(summary: Summary) -> dict[str, Any]:
    """The time accounts, a row each: of the GPUs, of E2E and of TTFT."""
    books = {
        heading: {row.account: row for row in account_rows(summary, key)}
        for heading, key in _BOOKS.items()
    }
    books = {heading: rows for heading, rows in books.items() if rows}
    met = {row.account: row.label for rows in books.values() for row in rows.values()}
    cells: list[tuple[str, ...]] = []
    for account in sorted(met, key=_account_order):
        row = [met[account]]
        for rows in books.values():
            posted = rows.get(account)
            row += [duration(posted.seconds), percent(posted.share)] if posted else ["", ""]
        cells.append(tuple(row))
    total = ["total"]
    for rows in books.values():
        total += [duration(sum(row.seconds for row in rows.values())), "100%"]
    columns = [Column(name, "n") for heading in books for name in (heading, "share")]
    return {
        "account_columns": [Column("Account"), *columns],
        "account_cells": cells,
        "account_total": tuple(total),
    }


def _account_order(account: str) -> int:
    return TIME_ACCOUNTS.index(account) if account in TIME_ACCOUNTS else len(TIME_ACCOUNTS)


def byte_rows(summary: Summary) -> list[ByteRow]:
    """One GPU's bytes by account, and their total."""
    device = {
        name: value for name, value in section(summary, "device_bytes").items() if is_number(value)
    }
    total = device.pop("total", None)
    if total is not None and sum(device.values()) != total:
        # Shown, not hidden: books that do not balance are a finding.
        device["not posted"] = total - sum(device.values())
    whole = total or sum(device.values())
    rows = [
        ByteRow(
            humanised(name), byte_size(value), f"{value:,.0f}", value / whole if whole else None
        )
        for name, value in device.items()
    ]
    if total is not None:
        rows.append(ByteRow("total", byte_size(total), f"{total:,.0f}", None))
    return rows
