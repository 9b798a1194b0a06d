"""Attack the simulator for some seconds and print what it did not withstand, with its seed.

    python -m tests.attack SECONDS [--seed N]

Each seed makes one scenario, which is simulated and audited, stepped as well as jumped, or refused
in words; and one damaged text of it, which is read. Exits with 1 after a crash, a loss, a
difference, or a case of over a minute.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import FleetcastError
from tests.attack.audit import audit, jumps_as_it_steps
from tests.attack.generator import damaged, random_scenario

_LONGEST_S = 60.0


def attack(seed: int, folder: Path) -> tuple[str, str, list[str]]:
    """Return what became of a seed's scenario and of its damaged text, and all that is wrong."""
    rng, faults = random.Random(seed), list[str]()
    values = random_scenario(rng)
    started = time.perf_counter()
    try:
        scenario = parse_scenario(values)
        faults += audit(simulate(scenario))
        if not jumps_as_it_steps(scenario):
            faults.append("stepping is not as jumping")
        ran = "completed"
    except FleetcastError:
        ran = "refused"
    except Exception:
        ran = "crashed"
        faults.append(traceback.format_exc())
    text = damaged(rng, values)
    try:
        path = folder / "damaged.yaml"
        path.write_bytes(text)
        load_scenario(path)
        read = "accepted"
    except FleetcastError:
        read = "refused"
    except Exception:
        read = "crashed"
        faults.append(f"{text!r}\n{traceback.format_exc()}")
    if time.perf_counter() - started > _LONGEST_S:
        faults.append(f"took {time.perf_counter() - started:.0f} s")
    return ran, read, faults


def main() -> None:
    """Attack, and print the counts and the faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    scenarios, texts, faulty = Counter[str](), Counter[str](), 0
    seed, ends = options.seed, time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < ends:
            ran, read, faults = attack(seed, Path(folder))
            scenarios[ran] += 1
            texts[read] += 1
            if faults:
                faulty += 1
                print(f"seed {seed}:", *faults, sep="\n  ", flush=True)
            seed += 1
    print(f"seeds {options.seed} to {seed - 1}: scenarios {dict(scenarios)}, texts {dict(texts)}")
    sys.exit(1 if faulty else 0)


if __name__ == "__main__":
    main()
