"""What the charts draw: the rows of one machine and one workload, and names for their series and cells.

CPU and GPU rows, different machines and different workloads never share a chart: `load_groups` splits the campaigns
that it is given into groups, and every chart draws one group.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import UserError
from bench.factors import CONTROL, FAILED_STATUSES, MACHINE, MEASURE, OK, SCALINGS, Baseline, is_baseline_row
from bench.results.cells import find_reference, judged_cells, judged_runs
from bench.results.columns import SUMMARY_COLUMNS
from bench.results.csvfile import read_rows
from bench.results.folder import Campaign, days
from bench.results.limits import CELL_KEYS
from bench.results.published import Published, load_published
from bench.results.summary import summarise
from bench.view.charts.series import GROUP, place_key, with_names, with_series

RUN_KEYS = ["campaign_id", "run_id"]
"""What a run's rows share: pooled campaigns may give their runs the same ids."""

VERSION_KEYS = ("torch", "cuda", "cudnn", "nccl", "driver", "python")


@dataclass(frozen=True)
class ChartData:
    """One group: one machine, kind of device, workload and data.

    `runs` has RUN_COLUMNS plus `series`; `summary` has SUMMARY_COLUMNS plus `series` and `cell`, the names that
    stand in legends and beside bars. `environment` is the content of environment.json, {} where it is missing.
    """

    runs: pd.DataFrame
    summary: pd.DataFrame
    environment: dict[str, Any] = field(default_factory=dict)
    published: Published | None = None
    baseline_option: str = ""
    all_series: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    whole: "ChartData | None" = None

    @cached_property
    def standing_runs(self) -> pd.DataFrame:
        """The rows of `runs` whose attempt counts, with the status that they were judged to have."""
        if self.whole is not None:
            # A strong cell may be judged by a baseline that ran under weak scaling only.
            return self._own(self.whole.standing_runs)
        return judged_runs(self.runs, Baseline.parse(self.baseline_option))

    @cached_property
    def measured(self) -> pd.DataFrame:
        """Headline cells of the summary, the A/A control left out."""
        return self.summary[self.summary["role"] == MEASURE]

    @cached_property
    def ok_cells(self) -> pd.DataFrame:
        """Headline cells that count: of one that is invalid nothing is drawn, whatever some of its runs say."""
        return self.measured[self.measured["status"] == OK]

    @cached_property
    def controls(self) -> pd.DataFrame:
        """The A/A rows that have a speedup."""
        return self.summary[(self.summary["role"] == CONTROL) & self.summary["speedup"].notna()]

    @cached_property
    def not_ok(self) -> pd.DataFrame:
        """Cells that have no figure: failed and unsupported ones."""
        return self.measured[self.measured["status"] != OK]

    @cached_property
    def series_names(self) -> list[str]:
        """All series, the baseline's first, the others in order of name; a series keeps its look in all charts."""
        if self.all_series:
            return list(self.all_series)
        names = sorted(set(self.measured["series"]))
        first = [row["series"] for _, row in self.measured.iterrows() if is_baseline_row(row)]
        return list(dict.fromkeys(first + names))

    def only(self, scaling: str) -> "ChartData":
        """The same group with the rows of one scaling; its series keep their looks."""
        return self._by_scaling[scaling]

    @cached_property
    def _by_scaling(self) -> dict[str, "ChartData"]:
        return {
            scaling: replace(
                self,
                runs=self.runs[self.runs["scaling"] == scaling],
                summary=self.summary[self.summary["scaling"] == scaling],
                all_series=tuple(self.series_names),
                whole=self.whole or self,
            )
            for scaling in SCALINGS
        }

    @cached_property
    def device_kind(self) -> str:
        return str(self.runs["device_kind"].iloc[0]) if len(self.runs) else ""

    @cached_property
    def device_name(self) -> str:
        names = sorted({str(name) for name in self.runs["device_name"] if name})
        return ", ".join(names) or "unknown device"

    @cached_property
    def title(self) -> str:
        """Names the group among others, such as `resnet18 on cifar10, NVIDIA H200`."""
        if not len(self.runs):
            return ""
        row = self.runs.iloc[0]
        return f"{row['workload']} on {row['dataset']}, {self.device_name}"

    @cached_property
    def slug(self) -> str:
        """The group as part of a file name."""
        row = self.runs.iloc[0] if len(self.runs) else dict.fromkeys(GROUP, "")
        words = [*(row[name] for name in GROUP if name != MACHINE), row[MACHINE][:8]]
        return re.sub(r"[^a-z0-9]+", "-", "-".join(str(word) for word in words).lower()).strip("-")

    @cached_property
    def versions(self) -> str:
        """Versions that the captions state, as far as environment.json has them."""
        found: dict[str, str] = {}
        _collect_versions(self.environment.get("identity", {}), found)
        return ", ".join(f"{key} {found[key]}" for key in VERSION_KEYS if key in found)

    @cached_property
    def dates(self) -> str:
        return days(self.runs["utc_start"])

    @cached_property
    def baseline(self) -> str:
        """The baseline in words: `single@1 fp32`, or `single@1` where each cell has the one of its own precision."""
        names = sorted({str(name) for name in self.summary["baseline"] if name})
        if len(names) <= 1:
            return names[0] if names else ""
        return ", ".join(sorted({name.rsplit(" ", 1)[0] for name in names}))

    @cached_property
    def ok_runs(self) -> pd.DataFrame:
        """One row a headline run that counts, with `samples_per_second` over all its epochs and `speedup`.

        speedup = samples/s of the run / samples/s of the baseline's run in the same block; NaN without one.
        """
        if self.whole is None:
            return _ok_runs(self)
        # A weak cell may be paired with a baseline that ran under strong scaling only, so pairs are made in the whole.
        return self._own(self.whole.ok_runs)

    def _own(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Of the runs of the whole those of this scaling."""
        return runs[runs["scaling"].isin(self.runs["scaling"].unique())]


def _collect_versions(facts: Any, found: dict[str, str]) -> None:
    """Look for version facts at any depth, by plain or `_version` name."""
    if not isinstance(facts, dict):
        return
    for key, value in facts.items():
        short = str(key).removesuffix("_version")
        if short in VERSION_KEYS and isinstance(value, str | int | float) and value != "" and short not in found:
            found[short] = str(value)
        _collect_versions(value, found)


def _ok_runs(data: ChartData) -> pd.DataFrame:
    """The runs that count, by the same rules as the summary: last attempts, epochs summed, loss gate applied."""
    spec = Baseline.parse(data.baseline_option)
    cells = judged_cells(data.runs, spec)
    names = {place_key(row): str(row["series"]) for row in data.summary.to_dict("records")}
    rows: list[dict[str, Any]] = []
    for cell in cells:
        if cell["role"] != MEASURE or not cell.counts:
            continue
        reference = cell if spec.matches(cell) else find_reference(cell, cells, spec.matches)
        base = {run.pair: run.samples_per_second for run in reference.ok_runs} if reference else {}
        for run in cell.ok_runs:
            rate, other = run.samples_per_second, base.get(run.pair)
            rows.append(
                {
                    "run_id": run.first("run_id"),
                    "series": names.get(place_key(cell.factors), str(cell["strategy"])),
                    **{name: cell[name] for name in CELL_KEYS if name != "series"},
                    "samples_per_second": rate,
                    "speedup": rate / other if rate and other else float("nan"),
                }
            )
    return pd.DataFrame(rows, columns=["run_id", *CELL_KEYS, "samples_per_second", "speedup"])


def group_data(runs: pd.DataFrame, summary: pd.DataFrame, **extra: Any) -> ChartData:
    """A group of frames that are already of one machine and workload, with the names of series and cells added."""
    summary = with_names(summary)
    return ChartData(runs=with_series(runs, summary), summary=summary, **extra)


def read_campaigns(folders: Iterable[Path]) -> list[Campaign]:
    """The campaigns of these folders. Raises UserError when there is none, or a folder holds no campaign."""
    campaigns = [Campaign(Path(folder)) for folder in folders]
    if not campaigns:
        raise UserError("no results folder was given; give at least one folder that holds a runs.csv")
    return campaigns


def load_groups(folders: Iterable[Path], *, published: Published | None = None) -> list[ChartData]:
    """Split the campaigns into groups; campaigns of equal environment_id are pooled, their blocks kept apart."""
    campaigns = read_campaigns(folders)
    published = load_published() if published is None else published
    pools: dict[str, list[Campaign]] = {}
    for campaign in campaigns:
        for environment_id in dict.fromkeys(campaign.runs[MACHINE]):
            pools.setdefault(environment_id, []).append(campaign)
    groups: list[ChartData] = []
    for environment_id, members in sorted(pools.items()):
        groups += _load_pool(environment_id, members, published)
    return groups


def one_of_each(campaigns: Sequence[Campaign]) -> list[pd.DataFrame]:
    """The rows of these campaigns, those of a copy once.

    Raises UserError for rows of one run and epoch that are not the same: which is true cannot be told.
    """
    seen: dict[tuple[Any, ...], tuple[dict[str, Any], Path]] = {}
    parts = []
    for campaign in campaigns:
        new = []
        for row in campaign.run_rows:
            key = (row["campaign_id"], row["run_id"], row["epoch"])
            earlier, folder = seen.setdefault(key, (row, campaign.folder))
            if earlier != row:
                raise UserError(
                    f"{folder} and {campaign.folder} both hold run {row['run_id']} of campaign {row['campaign_id']}, "
                    "with other values: one is a changed copy, or an earlier version named both after folders of one "
                    "name; give one of them"
                )
            new.append(earlier is row)
        parts.append(campaign.runs[new])
    return parts


def _load_pool(environment_id: str, members: list[Campaign], published: Published) -> list[ChartData]:
    """The groups of one machine: the runs of all its campaigns together, one group a workload and data."""
    runs = pd.concat(one_of_each(members), ignore_index=True)
    runs = runs[runs[MACHINE] == environment_id].reset_index(drop=True)
    baseline = next((c.baseline_option for c in members if c.baseline_option), "")
    # Of several campaigns each had a race of its own, and a cell that was out in one may have run on in another.
    raced_over = members[0].raced_over if len(members) == 1 else None
    summary = summarise(runs, baseline=baseline, stop_reason=_stop_reason(members), raced_over=raced_over)
    extra = {
        "environment": next(
            (c.environment for c in members if c.environment.get("environment_id") == environment_id), {}
        ),
        "published": published,
        "baseline_option": baseline,
        "commands": tuple(dict.fromkeys(str(c.facts["command"]) for c in members if c.facts.get("command"))),
        "notices": tuple(dict.fromkeys(str(c.facts["notice"]) for c in members if c.facts.get("notice"))),
        "folders": tuple(c.folder.resolve().name for c in members),
    }
    found = []
    for key, part in runs.groupby(list(GROUP), sort=True, dropna=False):
        mask = (summary[list(GROUP)] == pd.Series(key, index=list(GROUP))).all(axis=1)
        found.append(group_data(part.reset_index(drop=True), summary[mask], **extra))
    return found


def _stop_reason(members: list[Campaign]) -> str:
    """Why the campaigns ended, as their own summaries state it: it is not derived from the runs."""
    stated = []
    for campaign in members:
        path = campaign.folder / "summary.csv"
        stated += read_rows(path, SUMMARY_COLUMNS) if path.is_file() else []
    return "; ".join(dict.fromkeys(str(row["stop_reason"]) for row in stated if row["stop_reason"]))


def failures_text(data: ChartData, *, most: int = 6) -> str:
    """Failed and unsupported cells in words for a caption, such as `Failed: dp@2 (oom).`; '' where there are none."""
    cells = data.not_ok
    sentences = []
    for head, chosen in (
        ("Failed", cells["status"].isin(FAILED_STATUSES)),
        ("Not supported", ~cells["status"].isin(FAILED_STATUSES)),
    ):
        rows = cells[chosen]
        if len(rows):
            shown = [
                f"{row['cell']} ({row['status']})" if head == "Failed" else str(row["cell"])
                for _, row in rows.head(most).iterrows()
            ]
            rest = f" and {len(rows) - most} more" if len(rows) > most else ""
            sentences.append(f"{head}: {', '.join(shown)}{rest}.")
    return " ".join(sentences)
