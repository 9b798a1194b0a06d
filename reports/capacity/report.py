"""The report of a capacity search, section by section."""

from __future__ import annotations

from pathlib import Path

from reports.capacity.answer import (
    Content,
    amount,
    certainty,
    distance,
    heading,
    headline,
    level_text,
    tail_text,
    wanted_lines,
)
from reports.capacity.figures import account_curve, attainment_curve, latency_curves
from reports.document import (
    Block,
    Cell,
    Column,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    conditions_section,
    evidence_section,
    numbers,
    scenario_section,
    warning_section,
)
from reports.facts import CONDITION_LABELS
from reports.folder import incomplete, read_content, read_scenario
from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    condition_text,
    duration,
    humanised,
    is_number,
    latencies_beside,
    percent,
    sentence,
    share_text,
    significant,
    target,
    whole_percent,
)
from reports.schemas import CAPACITY


def write_capacity_page(folder: Path | str) -> Path:
    """Write ``capacity.html`` into a folder with capacity.json and scenario.yaml.

    The page is identical for identical folders. Raises `ScenarioError` if a file is missing or
    cannot be read.
    """
    from reports.html import write_page

    folder = Path(folder)
    content = read_content(folder, "capacity", CAPACITY, "capacity search")
    with incomplete(folder, "capacity"):
        report = capacity_report(content, read_scenario(folder))
        return write_page(report, folder / "capacity.html")


def capacity_report(content: Content, scenario_yaml: str = "") -> Report:
    """Return the report of a capacity search from the content of capacity.json. The scenario is
    for the page alone."""
    binding, run = content["binding"], content["run"]
    return Report(
        eyebrow="Capacity",
        heading=heading(content),
        headline=headline(content),
        tone="good" if content["answer"]["capacity"] is not None else "bad",
        sentences=[
            certainty(content),
            distance(content),
            *wanted_lines(content),
            Text(binding["sentence"], on="terminal"),
            Text(binding["advice"] or "", on="terminal"),
        ],
        tiles=_tiles(content),
        sections=[
            _curve(content),
            _binding(content),
            warning_section([sentence(warning["text"]) for warning in content["warnings"]]),
            conditions_section(_conditions(content), content["method"]),
            evidence_section(list(content["evidence"].items()), content["sources"]),
            scenario_section(
                "Scenario",
                {"The scenario that was searched, defaults filled in": scenario_yaml},
            ),
        ],
        closing=[_conditions_line(content), content["method"]],
        footer=[f"{run['simulations']} simulations", f"{run['requests']:,} requests counted"],
        version=content["fleetcast_version"],
    )


def _tiles(content: Content) -> list[Tile]:
    question, answer, binding = content["question"], content["answer"], content["binding"]
    tiles = []
    if answer["capacity"] is not None:
        low, high = (level_text(content, x) for x in answer["interval"])
        note = question["unit"] if low == high else f"{question['unit']}, {low} to {high}"
        tiles.append(Tile("Capacity", level_text(content, answer["capacity"]), note))
        if answer["gpus"] > 1:
            tiles.append(Tile("A GPU", significant(answer["per_gpu"]), question["unit"]))
        if answer["of_saturation"]:
            note = f"of {significant(answer['saturation_per_s'])} requests/s"
            tiles.append(Tile("Of saturation", whole_percent(answer["of_saturation"]), note))
    if content["wanted"]:
        wanted = content["wanted"]
        note = f"for {amount(content, wanted['level'])}"
        replicas = wanted["simulated_replicas"] or wanted["replicas"]
        tiles.append(Tile("Replicas", f"{replicas:,}", note))
    for name in latencies_beside(question["targets"]):
        value = binding["latency_s"].get(name, {}).get("p99")
        aim = question["targets"].get(name)
        note = f"target {target(aim)}" if aim else f"at {amount(content, binding['level'])}"
        tiles.append(Tile(f"{LATENCY_LABELS[name]} p99", duration(value), note))
    return tiles


def _curve(content: Content) -> Section:
    table = curve_table(content)
    has_load = any(row[1] for row in table.rows)
    evidence = {content["label"]: ""} if content["label"] else None
    return Section(
        "curve",
        "Attainment against load",
        [
            Figure(lambda sheet: attainment_curve(content, sheet), evidence),
            Figure(lambda sheet: latency_curves(content, sheet), evidence),
            table,
        ],
        terminal=f"Attainment against load{'; load is that of saturation' if has_load else ''}",
    )


def curve_table(content: Content) -> Table:
    """Return one row per load that was simulated. A wide table loses its least important columns
    on a narrow terminal."""
    question, metrics = content["question"], latencies_beside(content["question"]["targets"])
    rows: list[Row] = []
    for row in content["curve"]:
        low, high = row["interval"] or (0.0, 0.0)
        attainment, saturation = row["attainment"], row["saturation_per_s"]
        is_met = question["attainment"] is None or (attainment or 0.0) >= question["attainment"]
        is_rate = question["unit"] == "requests/s" and saturation
        p99s = [row["latency_s"].get(name, {}).get("p99") for name in metrics]
        rows.append(
            (
                level_text(content, row["level"]),
                whole_percent(row["level"] / saturation) if is_rate else "",
                Cell(
                    share_text(attainment) if is_number(attainment) else MISSING,
                    "good" if row["stable"] and is_met else "bad",
                ),
                "" if high - low < 5e-5 else f"±{(high - low) / 2:.2%}",
                *(duration(value) for value in p99s),
                f"{row['replications']}",
                "" if row["stable"] else "grows",
            )
        )
    return Table(
        [
            Column(question["unit"], "number"),
            Column("Of saturation", "number", terminal="load", drop=2),
            *numbers("Attainment"),
            Column("95%", "number", drop=3),
            *numbers(*(f"{LATENCY_LABELS[name]} p99" for name in metrics)),
            Column("Runs", "number", drop=1),
            Column("Queue", "note"),
        ],
        rows,
        note="Attainment is good requests over arrived ones; a good request finished and met every "
        "target. A load at which the queue grows never counts as kept.",
    )


def _binding(content: Content) -> Section:
    binding, missed = content["binding"], _missed(content)
    misses = ", ".join(f"{fact.label} {fact.value}" for fact in missed)
    evidence = {content["label"]: ""} if content["label"] else None
    blocks: list[Block] = [
        Text(binding["sentence"], on="page"),
        Text(binding["advice"] or "", on="page"),
        Figure(lambda sheet: account_curve(content, sheet), evidence),
    ]
    if binding["accounts"]:
        blocks += [
            account_table(content),
            Text(
                f"of the requests that miss the SLO, so many miss: {misses}" if misses else "",
                "note",
                on="terminal",
            ),
        ]
    blocks += [
        Facts(missed, "Targets missed by the requests that miss the SLO", on="page"),
        Facts(_state(content), f"The engines at {amount(content, binding['level'])}"),
    ]
    return Section("binding", "What binds", blocks, terminal="")


def account_table(content: Content) -> Table:
    """Return the mean time of the slowest requests by account, at light load and at the
    capacity. Accounts of less than a thousandth of it are left out."""
    binding = content["binding"]
    accounts = binding["accounts"]
    total_s = sum(row["seconds"] for row in accounts)
    loads = ["level"] if binding["level"] == binding["light_level"] else ["light_level", "level"]
    keys = {"light_level": "light_seconds", "level": "seconds"}
    rows = [
        (
            humanised(row["account"]),
            *(duration(row[keys[load]] or None) for load in loads),
            percent(row["share"]),
        )
        for row in accounts
        if row["share"] >= 0.001 or row["light_seconds"] >= 0.001 * total_s
    ]
    totals = (duration(sum(row[keys[load]] for row in accounts)) for load in loads)
    levels = {load: level_text(content, binding[load]) for load in loads}
    unit, tail = content["question"]["unit"], tail_text(content)
    return Table(
        [
            Column("Account"),
            *(Column(f"at {text} {unit}", "number", terminal=text) for text in levels.values()),
            *numbers("Share"),
        ],
        rows,
        title=tail,
        terminal=f"{tail}: where it goes, at {' and at '.join(levels.values())} {unit}",
        total=("all", *totals, "100%"),
    )


def _missed(content: Content) -> list[Fact]:
    """Return which targets are missed by requests that miss the SLO, most frequent first. A
    request may miss several."""
    shares = content["binding"]["missed_by"]
    labels = {**LATENCY_LABELS, "unfinished": "rejected or never ended"}
    names = sorted(shares, key=lambda name: -shares[name])
    return [Fact(labels[name], percent(shares[name])) for name in names if shares[name]]


def _state(content: Content) -> list[Fact]:
    """Return the state of the engines at the capacity."""
    state, conditions = content["binding"]["state"], content["conditions"]
    if not state:
        return []
    seqs, tokens = conditions["max_num_seqs"], conditions["max_num_batched_tokens"]
    facts = [
        Fact("GPU busy in time", percent(state["gpu_busy"])),
        Fact(
            "KV cache",
            percent(state["kv_occupancy"]),
            f"at most {percent(state['kv_occupancy_max'])}",
        ),
        Fact(
            "Running",
            _held(state["running"]),
            f"at most {state['running_max']:,.0f} of {seqs:,}, an engine",
        ),
        Fact("Waiting", _held(state["waiting"]), f"at most {state['waiting_max']:,.0f}, an engine"),
        Fact("At max_num_seqs", percent(state["at_max_num_seqs"]), "of the time"),
        Fact(
            "At max_num_batched_tokens",
            percent(state["at_max_num_batched_tokens"]),
            f"of the time, {tokens:,} tokens a step",
        ),
        Fact("Preempted", percent(state["preempted_share"]), "of requests"),
    ]
    if state["cached_share"]:
        facts.append(Fact("Prompt tokens cached", percent(state["cached_share"])))
    return facts


def _held(count: float) -> str:
    """Write a mean number of requests; below 0.05 it is negligible and written as 0."""
    return significant(count) if count >= 0.05 else "0"


def _conditions(content: Content) -> list[Fact]:
    question, conditions = content["question"], content["conditions"]
    labels = CONDITION_LABELS | {"runs": "Runs", "seed": "Seeds"}
    rows = []
    if question["attainment"] is not None:
        rows.append(Fact("Requests that must meet the SLO", share_text(question["attainment"])))
    rows += [
        Fact(f"{LATENCY_LABELS[name]} target", target(value))
        for name, value in question["targets"].items()
    ]
    rows.append(Fact("Precision asked for", f"±{question['precision']:.1%}"))
    rows += [
        Fact(labels.get(name, name), condition_text(value))
        for name, value in conditions.items()
        if name not in ("slo", "notes", "operators") and value is not None
    ]
    return rows + [Fact("Note", note) for note in conditions["notes"]]


def _conditions_line(content: Content) -> str:
    conditions, run = content["conditions"], content["run"]
    return (
        f"{heading(content)} (replicas {conditions['replicas']}, TP "
        f"{conditions['tensor_parallel_size']}) · {conditions['engine']} {conditions['scheduler']} "
        f"{conditions['router']} · {conditions['workload']} · {conditions['runs']}, "
        f"{run['simulations']} runs of seeds {conditions['seed']} · evidence: {content['label']}"
    )
