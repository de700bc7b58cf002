"""The smoke run's rows: which strategies ran, and that the others say why not."""

import sys
from pathlib import Path

from bench.results.folder import Campaign

OK = {("single", 1), ("dp", 1), ("ddp_mp", 2)} | {(n, d) for n in ("ddp", "ddp_amp", "ddp_syncbn") for d in (1, 2)}
UNSUPPORTED = {("single", 2), ("dp", 2), ("ddp_mp", 1)}

rows = Campaign(Path(sys.argv[1])).run_rows
status = {(row["strategy"], row["devices"]): row["status"] for row in rows}
expected = dict.fromkeys(OK, "ok") | dict.fromkeys(UNSUPPORTED, "unsupported")
if status != expected:
    sys.exit(f"smoke run: expected {expected}, got {status}")
silent = [row["run_id"] for row in rows if row["status"] == "unsupported" and not row["reason"]]
if silent:
    sys.exit(f"smoke run: unsupported without a reason: {silent}")
print(f"smoke run: {len(OK)} cells ok, {len(UNSUPPORTED)} unsupported with a reason")
