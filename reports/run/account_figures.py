"""Figure of the time accounts: where the GPUs' time and a request's time go."""

from __future__ import annotations

from reports import svg
from reports.facts import AccountRow
from reports.words import duration, percent, whole_percent

_BLUE, _VIOLET, _TEAL, _BROWN = _DARK = "#0a6ead", "#6b53a4", "#0b7f7a", "#8a5a3c"
# Fixed in both themes, unlike the lines of other figures: the hues must stay apart.
ACCOUNT_COLOURS = {
    "admission_queue": svg.ORANGE,
    "scheduling_wait": svg.SAND,
    "cache_load": _VIOLET,
    "prefill_compute": _BLUE,
    "prefill_memory": svg.SKY,
    "decode_weight_reads": svg.GREEN,
    "decode_state_reads": svg.MINT,
    "communication": svg.YELLOW,
    "launch_and_host": svg.GREY,
    "others_prefill": svg.PINK,
    "kv_transfer": _TEAL,
    "preemption_recompute": "#d35f0a",
    "preemption_swap": _BROWN,
    "remainder": svg.SILVER,
}


def account_breakdown(accounts: dict[str, list[AccountRow]]) -> svg.Plot | None:
    """Where time goes: a stacked bar for each name, e.g. GPU, E2E and TTFT.

    Rows are as ``account_rows`` returns them. None where there is no time to split.
    """
    bars = [(label, rows) for label, rows in accounts.items() if rows]
    if not bars:
        return None
    labels = {row.account: row.label for _, rows in bars for row in rows}
    said = []
    with svg.drawing(svg.WIDTH_IN, 0.62 * len(bars) + 1.25) as figure:
        axes = figure.subplots()
        drawn: set[str] = set()
        for position, (_, rows) in enumerate(bars):
            left = 0.0
            for row in rows:
                axes.barh(
                    -position,
                    row.share,
                    left=left,
                    height=0.62,
                    color=ACCOUNT_COLOURS.get(row.account, svg.SILVER),
                    edgecolor=svg.PAPER,
                    linewidth=0.8,
                    label=None if row.account in drawn else labels[row.account],
                )
                if row.share >= 0.055:
                    middle = (left + row.share / 2, -position)
                    axes.annotate(
                        whole_percent(row.share),
                        middle,
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color=_text_on(ACCOUNT_COLOURS.get(row.account, svg.SILVER)),
                    )
                drawn.add(row.account)
                left += row.share
        names = [f"{label}\n{duration(sum(row.seconds for row in rows))}" for label, rows in bars]
        axes.set_yticks([-position for position in range(len(bars))], names)
        axes.tick_params(axis="y", labelcolor=svg.INK, labelsize=9)
        axes.set_xlim(0, 1)
        axes.set_ylim(0.36 - len(bars), 0.36)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        figure.legend(
            loc="outside lower left", ncols=4, handlelength=1.0, handleheight=1.0, columnspacing=1.4
        )
        for label, rows in bars:
            shares = ", ".join(f"{row.label} {percent(row.share)}" for row in rows)
            said.append(f"{label}: {shares}.")
        text = svg.render(figure, "account-breakdown", f"Shares of time. {' '.join(said)}")
    caption = (
        "GPU: all steps of all engines, whosever they were. E2E and TTFT: mean over finished "
        "requests. Every second is in exactly one account, so each bar is the whole time."
    )
    return svg.Plot("account-breakdown", "Shares of time by account", text, caption)


def _text_on(colour: str) -> str:
    return "#ffffff" if colour in _DARK else "#111111"
