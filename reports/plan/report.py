"""The report of a plan, section by section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.document import (
    Block,
    Cell,
    Code,
    Column,
    Details,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    Tone,
    conditions_section,
    evidence_section,
    numbers,
    scenario_section,
)
from reports.folder import incomplete, read_content
from reports.numbers import MISSING, duration, share_text, significant, target, whole_percent
from reports.plan.answer import (
    Content,
    account_text,
    engines_of,
    gpus_of,
    headline,
    level_text,
    option_text,
    reasons,
    relaxed_sentences,
    runs_text,
    target_name,
    target_text,
    targets_text,
    usd,
)
from reports.plan.figures import carried_figure, front_figure
from reports.schemas import PLAN
from sim.errors import ScenarioError


def write_plan_page(folder: Path | str) -> Path:
    """Write ``plan.html`` into a folder with plan.json and plan.yaml.

    The page is identical for identical folders. Raises `ScenarioError` if a file is missing or
    cannot be read.
    """
    from reports.html import write_page

    folder = Path(folder)
    content = read_content(folder, "plan", PLAN, "plan")
    try:
        asked = (folder / "plan.yaml").read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{folder / 'plan.yaml'}: {error.strerror}") from None
    with incomplete(folder, "plan"):
        return write_page(plan_report(content, asked), folder / "plan.html")


def plan_report(content: Content, plan_yaml: str = "") -> Report:
    """Return the report of a plan from the content of plan.json. The plan's file is for the page
    alone."""
    relaxed, run = relaxed_sentences(content), content["run"]
    return Report(
        eyebrow="Plan",
        heading=f"A fleet for {content['conditions']['model']}",
        headline=headline(content),
        tone="good" if content["ranked"] else "bad",
        sentences=[*reasons(content), *(Text(line, on="terminal") for line in relaxed)],
        tiles=_tiles(content),
        sections=[
            Section(
                "relaxed", "What would have to give", [Text(line) for line in relaxed], on="page"
            ),
            Section("gpus", "GPUs", [Facts(_counts(content))], on="terminal"),
            _ranked(content),
            _growth(content),
            _front(content),
            _candidates(content),
            _commands(content),
            conditions_section(_conditions(content), content["method"]),
            evidence_section(list(content["evidence"]["shares"].items())),
            scenario_section("Plan", {"The plan that was asked": plan_yaml}),
        ],
        closing=[_conditions_line(content), content["method"]],
        footer=[f"{run['fleets']:,} fleets", f"{run['requests']:,} requests simulated"],
        version=content["fleetcast_version"],
    )


def _tiles(content: Content) -> list[Tile]:
    """Return the three fleets of the answer, and the cheapest fleet's cost and headroom."""
    counts, tiles = content["counts"], []
    fewest = "Fewest tried that fit" if content["sampled"] else "Fewest that fit"
    labels = (("fits", fewest), ("cheapest", "Cheapest"), ("spare", "With N+1"))
    for key, label in labels:
        fleet = counts[key]
        if fleet is not None:
            note = f"GPUs: {gpus_of(fleet)}, {usd(fleet['usd_per_h'])}/h"
            tiles.append(Tile(label, f"{fleet['gpus']:,}", note))
    if content["ranked"]:
        best = content["ranked"][0]
        tiles.append(Tile("A month", usd(round(best["usd_per_month"])), engines_of(best)))
        if best["headroom"] is not None:
            note = f"carries {level_text(content, best['capacity'])}"
            tiles.append(Tile("Headroom", whole_percent(best["headroom"]), note))
        if best["usd_per_million_tokens"] is not None:
            cost = f"${significant(best['usd_per_million_tokens'])}"
            tiles.append(Tile("A million tokens", cost, "in and out, at the planned load"))
    return tiles


def _counts(content: Content) -> list[Fact]:
    """Return the three fleets of the answer: their GPUs, price and engines."""
    counts, rows = content["counts"], []
    if counts["fits"] is not None:
        fits, which = counts["fits"], " tried" if content["sampled"] else ""
        rows.append(
            Fact(f"Fewest{which} that hold the model", gpus_of(fits), f"{usd(fits['usd_per_h'])}/h")
        )
    for key, label in (("cheapest", "Cheapest that meets the targets"), ("spare", "With N+1")):
        fleet = counts[key]
        if fleet is not None:
            month = usd(round(fleet["usd_per_month"]))
            said = f"{usd(fleet['usd_per_h'])}/h ({month} a month), {engines_of(fleet)}"
            rows.append(Fact(label, gpus_of(fleet), said))
    return rows


def _evidence(content: Content) -> dict[str, str] | None:
    label = content["evidence"]["label"]
    return {label: ""} if label else None


def _ranked(content: Content) -> Section:
    if not content["ranked"]:
        return Section("ranked", "", [])
    binding = content["ranked"][0]["binding"]
    load = level_text(content, content["question"]["level"])
    return Section(
        "ranked",
        "Fleets that meet the targets",
        [
            Text("Each candidate with the fewest engines that do, cheapest first.", on="page"),
            ranked_table(content),
            Figure(lambda sheet: carried_figure(content, sheet), _evidence(content)),
            Text(binding["sentence"], on="page"),
            Text(binding["advice"] or "", on="page"),
            attained_table(content),
        ],
        terminal=f"Fleets that meet the targets at {load}, each with the fewest engines",
    )


def _growth(content: Content) -> Section:
    rows = [
        [
            "today" if not row["years"] else f"in {12 * row['years']:g} months",
            level_text(content, row["level"]),
            f"{row['units']:,}",
            f"{row['gpus']:,}",
            usd(round(row["usd_per_month"])),
        ]
        for row in content.get("growth", [])
    ]
    note = (
        "Peak load, and the cheapest fleet in proportion to what it carries; the last row is "
        "simulated."
    )
    table = Table([Column("When"), *numbers("Peak load", "Engines", "GPUs", "A month")], rows)
    return Section("growth", "As the load grows", [table, Text(note, "note")] if rows else [])


def ranked_table(content: Content) -> Table:
    """Return the ranked fleets, cheapest first."""
    rows: list[Row] = []
    for one in content["ranked"]:
        headroom = MISSING if one["headroom"] is None else f"{one['headroom']:+.0%}"
        if one["headroom"] is None and one["at_least"]:
            headroom = f"over {one['at_least'] / content['question']['level'] - 1:+.0%}"
        binding = one["binding"]
        rows.append(
            (
                one["name"],
                " + ".join(f"{engine['replicas']:,}" for engine in one["engines"]),
                f"{one['gpus']:,}",
                usd(one["usd_per_h"]),
                headroom,
                "queue" if one["limit"] == "stability" else binding["metric"].upper(),
                account_text(binding["cause"]),
            )
        )
    return Table(
        [
            Column("Candidate", wraps=True),
            *numbers("Engines", "GPUs"),
            Column("An hour", "number", terminal="$/h"),
            *numbers("Headroom"),
            Column("Binds"),
            Column("By", "note"),
        ],
        rows,
    )


def attained_table(content: Content) -> Table:
    """Return what the cheapest fleet attains, one row per target."""
    pairs = zip(content["question"]["targets"], content["ranked"][0]["attained"], strict=True)
    return Table(
        [Column("Target"), *numbers("Percentile", "Within", "Worst run", "Asked")],
        [
            (
                target_text(asked),
                duration(row["value_s"]),
                share_text(row["share"]),
                MISSING if row["lowest"] is None else share_text(max(row["lowest"], 0.0)),
                share_text(asked["share"]),
            )
            for asked, row in pairs
        ],
        title="The cheapest, target by target",
        note="Shares are of the requests that arrive; those that are rejected or never finish miss "
        "every target.",
    )


def _front(content: Content) -> Section:
    """Return the fleets on the front of cost and latency, cheapest first."""
    targets = content["question"]["targets"]
    rows = [
        (
            f"{row['units']:,} \N{MULTIPLICATION SIGN} {row['name']}",
            f"{row['gpus']:,}",
            usd(row["usd_per_h"]),
            whole_percent(row["of_target"]),
            target_name(targets[row["target"]]),
        )
        for row in content["fleets"]
        if row["on_front"] and content["ranked"]
    ]
    columns = [
        Column("Fleet"),
        *numbers("GPUs"),
        Column("An hour", "number", terminal="$/h"),
        *numbers("Of target"),
        Column("Which", "note"),
    ]
    blocks: list[Block] = [
        Figure(lambda sheet: front_figure(content, sheet), _evidence(content)),
        Table(columns, rows, on="both" if len(rows) > 1 else "page"),
    ]
    return Section(
        "front",
        "What more money buys",
        blocks if content["ranked"] else [],
        terminal="What more money buys: the latency nearest to its target",
    )


_MOST = 25
"""Most candidates that the terminal shows."""
STAGES = {
    "ranked": "kept",
    "cost": "dearer",
    "simulated": "misses",
    "supply": "not to be had",
    "latency": "too slow",
    "memory": "cannot run",
}
_TONES: dict[str, Tone] = {"kept": "good", "misses": "bad", "too slow": "bad", "cannot run": "bad"}


def _candidates(content: Content) -> Section:
    table = candidate_table(content)
    more = len(table.rows) - _MOST
    text = f"and {more:,} more, in the page and in --format json" if more > 0 else ""
    return Section(
        "candidates",
        "Why each candidate was kept or dropped",
        [table, Text(text, "note", on="terminal")],
    )


def candidate_table(content: Content) -> Table:
    """Return every candidate: its name, the stage it reached, and why."""
    rows: list[Row] = []
    for row in content["candidates"]:
        stage = _stage(row)
        rows.append((row["name"], Cell(stage, _TONES.get(stage, "")), _why(content, row)))
    columns = [
        Column("Candidate"),
        Column("Stage", terminal=""),
        Column("Why", "note", wraps=True),
    ]
    return Table(columns, rows, most_rows=_MOST)


def _stage(row: dict[str, Any]) -> str:
    """Name the stage a candidate reached. For one that failed in simulation, say whether more
    engines would cost too much or are not available."""
    if row["stage"] == "simulated" and not row["alone"]:
        return STAGES["supply" if row["tried"] == row["most_units"] else "cost"]
    return STAGES[row["stage"]]


def _why(content: Content, row: dict[str, Any]) -> str:
    targets = content["question"]["targets"]
    if row["stage"] == "memory":
        return str(row["why"]).splitlines()[0]
    if row["stage"] == "latency":
        asked = targets[row["refused"]["target"]]
        least = row["refused"]["least_s"]
        if least is None:
            return f"{target_name(asked)}: too many requests are longer than an engine takes"
        return (
            f"{target_name(asked)} is at least {duration(least)} on idle engines, and must keep "
            f"within {target(asked['within_s'])}"
        )
    units = f"{row['unit']}{'s' * (row['least_units'] != 1)}"
    least = f"{row['least_units']:,} {units} needed at least, by the GPU time of the requests"
    if row["stage"] == "supply":
        return f"{least}; {row['most_units']:,} to be had ({row['limit']})"
    if row["units"] is not None:
        said = f"{row['units']:,} {row['unit']}{'s' * (row['units'] != 1)}"
        said += f" {'meet' if row['units'] != 1 else 'meets'}"
        said += f" the targets, {usd(row['usd_per_h'])}/h"
        if row["missed"] is not None:
            said += f"; {_missed(content, row)}"
        return said
    if row["stage"] == "cost":
        return f"{least}: {usd(row['least_usd_per_h'])}/h"
    return _missed(content, row)


def _missed(content: Content, row: dict[str, Any]) -> str:
    """Say how the largest fleet that failed missed its targets."""
    missed = row["missed"]
    asked = content["question"]["targets"][missed["target"]]
    count = missed["units"]
    many = count != 1
    how = {
        "share": f"{'miss' if many else 'misses'} {target_name(asked)}",
        "queue": f"{'have queues that grow' if many else 'has a queue that grows'}",
        "confidence": f"{'meet' if many else 'meets'} {target_name(asked)}, but not surely",
    }[missed["why"]]
    if missed["share"] is not None and missed["why"] == "share":
        how += f" ({share_text(missed['share'])} within {target(asked['within_s'])})"
    elif missed["share"] is None:
        how += " by far"
    if missed["account"]:
        how += f": {account_text(missed['account'])}"
    which = f"{count:,} {row['unit']}{'s' * many}"
    if row["units"] is None:
        which += _most(row)
    return f"{which} {how}"


def _most(row: dict[str, Any]) -> str:
    if row["alone"]:
        return ", with engines to themselves,"
    if row["tried"] == row["most_units"]:
        return f", all that can be had ({row['limit']}),"
    return ", the most that would be cheaper,"


def _commands(content: Content) -> Section:
    names, blocks = {"vllm": "vLLM", "sglang": "SGLang"}, list[Block]()
    winner = content["winner"] or {"commands": []}
    for row in winner["commands"]:
        count, role = f"{row['replicas']:,}", "" if row["role"] == "mixed" else f"{row['role']}, "
        what = "replicas" if row["role"] == "mixed" else f"{row['role']} engines"
        title = f"{names[row['engine']]} {row['version']}: {count} {what} on {row['gpu']}"
        on_terminal = f"{row['engine']} {row['version']} ({role}{count} of them)"
        blocks += [
            Code(row["command"], title, terminal=on_terminal),
            Text(_unsaid(row["unsaid"]), "note", on="page"),
        ]
    if blocks:
        summary = "The fleet as a scenario, to simulate and to change"
        blocks.append(Details(summary, [Code(winner["scenario"])]))
    return Section("commands", "To start it", blocks, terminal="To start its engines")


def _unsaid(fields: dict[str, Any]) -> str:
    """Name the engine and KV fields that no flag of this version expresses; empty if there are
    none."""
    own = {key: value for key, value in fields.items() if key.startswith(("engine.", "kv."))}
    if not own:
        return ""
    told = ", ".join(f"{key}: {value}" for key, value in own.items())
    return f"No flag of this version says {told}."


def _conditions(content: Content) -> list[Fact]:
    asked, conditions = content["question"], content["conditions"]
    rows = [
        Fact("Targets", targets_text(content)),
        Fact("Load planned for", level_text(content, asked["level"])),
        Fact("Load today", level_text(content, asked["now"])),
        Fact("Workload", conditions["workload"]),
        Fact(
            "A request, mean",
            f"{asked['prompt_tokens']:,.0f} tokens in, {asked['output_tokens']:,.0f} out",
        ),
        Fact("Confidence", share_text(asked["confidence"])),
        Fact("A fleet that passes", runs_text(content)),
    ]
    for offer in asked["gpus"]:
        had = "any number" if offer["available"] is None else f"{offer['available']:,}"
        where = ", ".join(x for x in (offer["source"], offer["date"]) if x) or "assumed"
        rows.append(Fact(offer["gpu"], f"{usd(offer['usd_per_gpu_h'])} an hour ({where}), {had}"))
    winner = content["ranked"][0]["options"] if content["ranked"] else {}
    rows += [Fact("Option", option_text(key, value)) for key, value in winner.items()]
    return rows + [Fact("Note", note) for note in conditions["notes"]]


def _conditions_line(content: Content) -> str:
    conditions, run = content["conditions"], content["run"]
    return (
        f"{conditions['model']} · {conditions['workload']} · {runs_text(content)} a fleet · "
        f"{run['candidates']:,} candidates, "
        f"{run['fleets']:,} fleets and {run['requests']:,} requests simulated · evidence: "
        f"{content['evidence']['label'] or 'none'}"
    )
