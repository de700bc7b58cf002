"""The published figures: complete witnesses, and ratios worked out by hand."""

from pathlib import Path

import pytest

from bench.errors import UserError
from bench.results.published import PUBLISHED_COLUMNS, load_published

BLANK_ALLOWED = {"batch_global", "test_accuracy"}


def _row(source: str, strategy: str, devices: int) -> dict[str, object]:
    """`ddp` and `ddp_amp` are the source's names: its scripts convert to SyncBatchNorm, and so do the rows."""
    mixed = strategy == "ddp_amp"
    name = "ddp_syncbn" if strategy.startswith("ddp") else strategy
    found = [
        row
        for row in load_published().rows
        if str(row["source"]).startswith(source)
        and (row["strategy"], row["devices"]) == (name, devices)
        and str(row["precision"]).startswith("amp") == mixed
    ]
    assert len(found) == 1, found
    return found[0]


def test_every_row_has_its_witnesses() -> None:
    rows = load_published().rows
    assert len(rows) == 11
    for row in rows:
        for column in PUBLISHED_COLUMNS:
            if column.name not in BLANK_ALLOWED:
                assert row[column.name] not in (None, ""), (column.name, row)
        assert row["url"].startswith("https://")
        assert row["date"][:4].isdigit()
        assert row["precision"] in ("fp32", "tf32", "amp-bf16", "amp-fp16")
        assert row["scaling"] in ("strong", "weak")


@pytest.mark.parametrize(
    ("source", "strategy", "devices", "seconds"),
    [
        ("AI Summer article", "single", 1, 13.2),
        ("AI Summer article", "dp", 4, 19.1),
        ("AI Summer article", "ddp", 2, 9.8),
        ("AI Summer article", "ddp", 4, 6.1),
        ("AI Summer article", "ddp_amp", 4, 6.5),
        ("AI Summer code repository", "single", 1, 13.08),
        ("AI Summer code repository", "ddp", 2, 9.79),
        ("AI Summer code repository", "ddp", 4, 6.11),
        ("AI Summer code repository", "ddp_amp", 4, 6.52),
    ],
)
def test_epoch_seconds(source: str, strategy: str, devices: int, seconds: float) -> None:
    assert _row(source, strategy, devices)["epoch_seconds"] == seconds


def test_accuracies() -> None:
    cells = [("single", 1), ("ddp", 2), ("ddp", 4), ("ddp_amp", 4)]
    found = [_row("AI Summer code repository", *cell)["test_accuracy"] for cell in cells]
    assert found == [0.27, 0.19, 0.14, 0.15]
    assert _row("AI Summer article", "ddp", 4)["test_accuracy"] == 0.14


def test_speedup_is_within_the_source() -> None:
    # 13.2 / 6.1 = 2.1639..., 13.2 / 19.1 = 0.6910...
    assert _row("AI Summer article", "ddp", 4)["speedup"] == pytest.approx(2.16393, abs=1e-5)
    assert _row("AI Summer article", "ddp", 4)["efficiency"] == pytest.approx(0.54098, abs=1e-5)
    assert _row("AI Summer article", "dp", 4)["speedup"] == pytest.approx(0.69110, abs=1e-5)


def test_notes_say_which_batch_was_run() -> None:
    assert "global batch 1024" in str(_row("AI Summer article", "dp", 4)["notes"])
    assert "256 samples a replica" in str(_row("AI Summer article", "ddp", 4)["notes"])


def test_table_is_typed() -> None:
    table = load_published().table
    assert str(table["devices"].dtype) == "Int64"
    assert str(table["epoch_seconds"].dtype) == "float64"


def test_a_broken_file_names_itself(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("strategy,devices\nddp,2\n")
    with pytest.raises(UserError, match=r"bad\.csv lacks the columns"):
        _ = load_published(tmp_path).rows
