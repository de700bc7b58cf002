"""A matrix in which everything goes wrong: every run keeps exactly one row with the right status, and nobody is left.

    python tests/chaos.py --runs 200 --seed 0

Each run is a strategy with one seeded random fault (kind, rank and phase) in a campaign of the toy workload on two
CPU ranks. Faults that end the campaign itself are followed by `--resume`: a rank sends SIGINT or SIGKILL to the
parent, or SIGINT or SIGTERM comes from outside, at a random time or just when a run is being recorded, so that it may
hit any run or none. The last line of the output is one JSON document with the counts; the exit code is 0 when every
check held.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from campaigns import Started, assert_none_left, command, start, toy
from fault_strategies import PHASES, Fault, write_table

from bench.factors import INTERRUPTED
from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.results.csvfile import read_rows

WEIGHTS = {
    "none": 2,
    "slow": 3,
    "raise": 5,
    "kill": 5,
    "exit0": 4,
    "hang": 1,
    "interrupt_parent": 1,
    "kill_parent": 1,
    "kill_agent": 1,
    "kill_server": 1,
    "outside": 2,
}
LOST = "what had started its ranks was lost"
TRIED_AGAIN = ("kill_agent", "kill_server")
"""A run is tried once more where what had started its ranks is lost."""
HANG_SECONDS = 40
MOMENTS = ("", "logs/*/measurement.json", "steps.csv", "runs.csv")
"""A signal from outside comes just after a file of this name was written; "" is any time."""
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
        **{kind: ["crashed", "ok"] for kind in TRIED_AGAIN},
    }.get(fault.kind, ["ok"])


@dataclass(frozen=True)
class Outside:
    """A signal to the parent: `delay` seconds after it has begun, then at the next `moment`, and `lag` seconds more."""

    number: signal.Signals
    delay: float
    moment: str
    lag: float


def draw_signals(faults: Mapping[str, Fault], *, seed: int) -> list[Outside]:
    """One for each fault of that kind; the first ones show every moment."""
    dice = random.Random(f"{seed}/outside")
    count = sum(fault.kind == "outside" for fault in faults.values())
    moments = [*dice.sample(MOMENTS, len(MOMENTS)), *dice.choices(MOMENTS, k=count)][:count]
    numbers = (signal.SIGINT, signal.SIGTERM)
    return [Outside(dice.choice(numbers), dice.uniform(0, 8), moment, dice.uniform(0, 0.05)) for moment in moments]


def send(process: Started, out: Path, outside: Outside, *, begun: float) -> bool:
    """Send the signal when its time has come. False where the campaign ended before."""

    def written(pattern: str, since: float) -> bool:
        return any(path.stat().st_mtime > since for path in out.glob(pattern))

    def wait(condition: Callable[[], bool]) -> None:
        while process.poll() is None and not condition():
            time.sleep(0.002)

    # Each session writes the matrix just before its first run.
    wait(lambda: written("matrix.toml", begun))
    due = time.monotonic() + outside.delay
    wait(lambda: time.monotonic() >= due)
    since = time.time()
    wait(lambda: not outside.moment or written(outside.moment, since))
    time.sleep(outside.lag)
    if process.poll() is not None:
        return False
    process.send_signal(outside.number)
    return True


def run_campaign(out: Path, faults: Mapping[str, Fault], *, seed: int) -> tuple[Counter[str], list[Outside]]:
    """Measure, and resume as often as the campaign was ended. Counts its exit codes and the signals from outside."""
    table = write_table(out.parent / "faults.py", faults)
    options = ["--strategy-file", str(table), "--seed", str(seed), "--timeout", str(HANG_SECONDS)]
    command_line = toy(out, *options, strategies=list(faults))
    waiting, sent = draw_signals(faults, seed=seed), []
    codes: Counter[str] = Counter()
    while True:
        code, errors, was_sent = run_session(
            command_line, out, waiting[0] if waiting else None, seconds=300 + 50 * len(faults)
        )
        sent += [waiting.pop(0)] if was_sent else []
        codes[str(code)] += 1
        print(f"the campaign ended with {code} after {time.monotonic() - BEGUN:.0f} s", flush=True)
        if code not in (130, -signal.SIGKILL, -signal.SIGTERM):
            assert code == (1 if any(failing(fault) for fault in faults.values()) else 0), errors
            return codes, sent
        assert sum(codes.values()) <= len(faults) + 1, "resumed more often than there are faults"
        command_line = command("--resume", str(out), "--quiet")


def run_session(
    command_line: list[str], out: Path, outside: Outside | None, *, seconds: float
) -> tuple[int, str, bool]:
    """One process of the campaign, to its end: its exit code, what it said, and whether a signal was sent to it."""
    begun = time.time()
    process = start(command_line)
    try:
        sent = outside is not None and send(process, out, outside, begun=begun)
        _, errors = process.communicate(timeout=seconds)
        assert_none_left(out, seconds=10)
        return process.returncode, errors, sent
    finally:
        # However this ends, nothing of it stays: the ranks die with their parent.
        process.kill()
        process.communicate()


def failing(fault: Fault) -> bool:
    return expected_statuses(fault)[-1] != "ok"


def check(out: Path, faults: Mapping[str, Fault], *, ended: int = 0) -> list[str]:
    """Everything that is wrong with the campaign's files, in words; reading them checks every value's type.

    Each of the `ended` sessions may have interrupted any run once, and each loss of a server or agent may have cost any
    run an attempt, since runs live side by side: what was not of its own doing is measured again.
    """
    problems = []
    losses = sum(fault.kind in TRIED_AGAIN for fault in faults.values())
    rows = read_rows(out / "runs.csv", RUN_COLUMNS)
    found: dict[str, list[dict[str, object]]] = {name: [] for name in faults}
    for row in rows:
        found.setdefault(row["strategy"], []).append(row)
    for name, fault in faults.items():
        statuses, expected = [str(row["status"]) for row in found[name]], expected_statuses(fault)
        interrupted = statuses.count(INTERRUPTED)
        lost = sum(LOST in str(row["repeated_for"]) for row in found[name])
        # Of a run that ends the campaign, or what had started it, the row may be of another that did so first.
        right = statuses[-1:] == expected[-1:] and len(statuses) == 1 + interrupted + lost
        if not right or interrupted > ended or lost > losses:
            told = [(row["status"], row["repeated_for"], row["reason"]) for row in found[name]]
            problems.append(f"{name} {fault}: {statuses}, expected {expected}: {told}")
            continue
        if failing(fault):
            problems += _check_reason(f"{name} {fault}", fault, str(found[name][-1]["reason"]))
    problems += [f"unknown strategy {name}" for name in found if name not in faults]
    problems += _check_ids_and_steps(out, rows)
    problems += [f"left behind: {path}" for path in [*out.glob("logs/*/rendezvous"), *out.glob("running.json")]]
    return problems


def _check_reason(name: str, fault: Fault, reason: str) -> list[str]:
    """A failing run's reason names the rank; that of a run in which one hangs names no rank that waits for it."""
    problems = []
    if f"rank {fault.rank} " not in reason:
        problems.append(f"{name}: its reason does not name the rank: {reason}")
    if fault.kind == "hang" and f"rank {1 - fault.rank} " in reason:
        problems.append(f"{name}: its reason names a rank that does not hang: {reason}")
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
        codes, sent = run_campaign(folder / "out", faults, seed=given.seed)
        problems = check(folder / "out", faults, ended=codes["130"])
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
                "signals_from_outside": dict(Counter(f"{one.number.name} {one.moment}".strip() for one in sent)),
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
