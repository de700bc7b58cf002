"""Run as a program: what every view shows of a campaign whose cells differ in a factor that the suite has not got.

    python tests/made_up_factor.py same|prefer FOLDER

The factor is one entry more in `bench.factors.FACTORS`, before any other module reads them, and nothing else is told
of it. The last line printed is one JSON document.
"""

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from bench import factors


def add_factor(matching: str) -> None:
    """Read the rest of `bench.factors` again, with one factor more."""
    made_up = factors.Factor(
        "interconnect", "str", "which link the ranks use", key="interconnect", many=True, default="auto",
        words="interconnect {}", matching=matching,
    )  # fmt: skip
    factors.FACTORS = (*factors.FACTORS, made_up)
    source = Path(factors.__file__).read_text(encoding="utf-8")
    derived = source[source.index("\nBY_NAME: ") :]
    exec(compile(derived, factors.__file__, "exec"), factors.__dict__)


def campaigns(out: Path) -> tuple[Path, Path]:
    """ddp over `ring` takes 8 s where it takes 10 s over `auto`; in the second campaign `ring` is half as fast."""
    from generated import row, write_campaign

    rows = []
    for block in (0, 1):
        for link, seconds in (("auto", 10.0), ("ring", 8.0)):
            cells = [("single", 1, 10.0), ("ddp", 1, seconds), ("ddp", 2, seconds / 2)]
            rows += [
                row(name, count, block, seconds=time, interconnect=link, run_id=f"{name}-{count}-{link}-{block}")
                for name, count, time in cells
            ]
    slower = [one | {"timed_seconds": one["timed_seconds"] * (1 + (one["interconnect"] == "ring"))} for one in rows]
    return write_campaign(out / "base", rows), write_campaign(out / "new", slower)


def show(base: Path, new: Path) -> dict:
    from bench.results.columns import RUN_COLUMNS, SUMMARY_COLUMNS, names
    from bench.results.compare import compare
    from bench.results.recommend import answer
    from bench.results.summary import write_summary
    from bench.view.charts import figure_speedup, load_groups
    from bench.view.export import export
    from bench.view.report import build_report
    from bench.view.table import print_table
    from bench.view.trackers import track
    from bench.view.verdicts import verdicts_text

    summary = write_summary(base)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_table(base, console=console)
    [data] = load_groups([base])
    comparison = compare(base, new)
    return {
        "columns": [names(RUN_COLUMNS), names(SUMMARY_COLUMNS)],
        "speedups": {f"{r.strategy}@{r.devices} {r.interconnect}": r.speedup for r in summary.itertuples()},
        "series": data.series_names,
        "lines": [str(line.get_label()) for line in figure_speedup(data).axes[0].lines],
        "table": console.file.getvalue(),
        "verdicts": {f"{one.name} {one.factors['interconnect']}": one.verdict for one in comparison.rows},
        "verdicts_text": verdicts_text(comparison, "text"),
        "benchmarks": [one["name"] for one in json.loads(export(base, "pytest-benchmark"))["benchmarks"]],
        "markdown": export(base, "markdown"),
        "trackers": track(base, "tensorboard", out=base / "tensorboard"),
        "report": build_report([base], base)[1].read_text(encoding="utf-8"),
        "answer": answer(data.summary).headline,
    }


if __name__ == "__main__":
    add_factor(sys.argv[1])
    print(json.dumps(show(*campaigns(Path(sys.argv[2])))))
