"""A matrix in which everything goes wrong: every run keeps exactly one row with the right status, and nobody is left.

    python tests/chaos.py --runs 200 --seed 0

Each run is a strategy with one seeded random fault (kind, rank and phase) in a campaign of the toy workload on two
CPU ranks. Faults that end the campaign itself (SIGINT, SIGKILL of the parent) are followed by `--resume`. The last
line of the output is one JSON document with the counts; the exit code is 0 when every check held.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from campaigns import assert_none_left, command, start, toy
from fault_strategies import PHASES, Fault, write_table

from bench.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.csvfile import read_rows

WEIGHTS = {
    "none": 2,
    "slow": 3,
    "raise": 5,
    "kill": 5,
    "exit0": 4,
    "hang": 1,
    "interrupt_parent": 1,
    "kill_parent": 1,
}
HANG_SECONDS = 40
STEPS, RANKS = 3, 2


def draw_faults(runs: int, *, seed: int, folder: Path) -> dict[str, Fault]:
    """One fault for each run, by the name of its strategy. The first runs show every kind once."""
    dice = random.Random(seed)
    kinds = list(WEIGHTS)[:runs]
    kinds += dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=runs - len(kinds))
    faults = {}
    for number, kind in enumerate(kinds):
        name = f"f{number:03d}_{kind}"
        faults[name] = Fault(kind, dice.randrange(RANKS), dice.choice(PHASES), mark=str(folder / f"{name}.done"))
    return faults


def expected_statuses(fault: Fault) -> list[str]:
    """The statuses of the run's rows in their order. What ends a rank after the result is complete is a warning."""
    if fault.kind in ("kill", "exit0"):
        return ["ok" if fault.phase == "close" else "crashed"]
    return {
        "raise": ["crashed"],
        "hang": ["timeout"],
        "interrupt_parent": ["interrupted", "ok"],
    }.get(fault.kind, ["ok"])


def run_campaign(out: Path, faults: Mapping[str, Fault], *, seed: int) -> Counter[str]:
    """Measure, and resume as often as the campaign was ended from within. Counts its exit codes."""
    table = write_table(out.parent / "faults.py", faults)
    options = ["--strategy-file", str(table), "--seed", str(seed), "--timeout", str(HANG_SECONDS)]
    process = start(toy(out, *options, strategies=list(faults)))
    codes: Counter[str] = Counter()
    while True:
        _, errors = process.communicate(timeout=300 + (HANG_SECONDS + 10) * len(faults))
        assert_none_left(out, seconds=10)
        code = process.returncode
        codes[str(code)] += 1
        print(f"the campaign ended with {code} after {time.monotonic() - BEGUN:.0f} s", flush=True)
        if code not in (130, -signal.SIGKILL):
            assert code == (1 if any(failing(fault) for fault in faults.values()) else 0), errors
            return codes
        assert sum(codes.values()) <= len(faults) + 1, "resumed more often than there are faults"
        process = start(command("--resume", str(out), "--quiet"))


def failing(fault: Fault) -> bool:
    return expected_statuses(fault)[-1] != "ok"


def check(out: Path, faults: Mapping[str, Fault]) -> list[str]:
    """Everything that is wrong with the campaign's files, in words; reading them checks every value's type."""
    problems = []
    rows = read_rows(out / "runs.csv", RUN_COLUMNS)
    found: dict[str, list[dict[str, object]]] = {name: [] for name in faults}
    for row in rows:
        found.setdefault(row["strategy"], []).append(row)
    for name, fault in faults.items():
        statuses = [str(row["status"]) for row in found[name]]
        if statuses != expected_statuses(fault):
            reasons = [row["reason"] for row in found[name]]
            problems.append(f"{name} {fault}: {statuses}, expected {expected_statuses(fault)}: {reasons}")
        elif failing(fault) and f"rank {fault.rank} " not in str(found[name][-1]["reason"]):
            problems.append(f"{name} {fault}: its reason does not name the rank: {found[name][-1]['reason']}")
    problems += [f"unknown strategy {name}" for name in found if name not in faults]
    problems += _check_ids_and_steps(out, rows)
    problems += [f"left behind: {path}" for path in [*out.glob("logs/*/rendezvous"), *out.glob("running.json")]]
    return problems


def _check_ids_and_steps(out: Path, rows: list[dict[str, object]]) -> list[str]:
    ids = Counter(str(row["run_id"]) for row in rows)
    problems = [f"{run_id} has {count} rows" for run_id, count in ids.items() if count > 1]
    steps = Counter(row["run_id"] for row in read_rows(out / "steps.csv", STEP_COLUMNS))
    expected = {row["run_id"]: STEPS * RANKS for row in rows if row["status"] == "ok"}
    if steps != expected:
        problems.append(f"steps.csv and runs.csv differ: {dict(steps.items() ^ expected.items())}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the campaign's files; default a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strategybench-chaos-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        faults = draw_faults(given.runs, seed=given.seed, folder=folder)
        codes = run_campaign(folder / "out", faults, seed=given.seed)
        problems = check(folder / "out", faults)
        statuses = Counter(row["status"] for row in read_rows(folder / "out" / "runs.csv", RUN_COLUMNS))
    for problem in problems:
        print(f"WRONG {problem}")
    print(
        json.dumps(
            {
                "runs": len(faults),
                "seed": given.seed,
                "kinds": dict(Counter(fault.kind for fault in faults.values())),
                "phases": dict(Counter(fault.phase for fault in faults.values())),
                "statuses": dict(statuses),
                "exit_codes": dict(codes),
                "seconds": round(time.monotonic() - BEGUN),
                "wrong": len(problems),
            }
        )
    )
    return 1 if problems else 0


BEGUN = time.monotonic()

if __name__ == "__main__":
    try:
        sys.exit(main())
    except (AssertionError, subprocess.SubprocessError) as error:
        sys.exit(f"WRONG {error}")
