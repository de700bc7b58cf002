"""By-products that fail cost neither the table nor the JSON, and a name that is no text costs no campaign."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from campaigns import TOY, command, rows, run
from generated import noisy_campaign, write_campaign

from bench.view import report
from bench.view.finish import finish


def test_a_chart_that_fails_costs_neither_table_nor_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no width")

    monkeypatch.setattr(report, "draw_groups", broken)
    folder = write_campaign(tmp_path / "c", noisy_campaign(seed=0, blocks=2))
    finish(folder, exit_code=0, quiet=False, json=True)
    out, err = capsys.readouterr()
    assert err == (
        f"no charts or report could be made (ZeroDivisionError: no width); try again with: bench report {folder}\n"
    )
    assert "ddp" in out
    assert json.loads(out.splitlines()[-1])["exit_code"] == 0
    assert (folder / "summary.csv").exists()


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_a_folder_whose_name_is_no_text_and_a_foreign_backend(tmp_path: Path) -> None:
    """Measured, drawn, read again and resumed."""
    out = tmp_path / os.fsdecode(b"o\xff")
    made = command("smoke", "--strategies", "single", "--devices", "1", *TOY, "--quiet", "--json", "--out", str(out))
    fresh = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "MPLBACKEND": "no_such_backend"}
    done = run(made, **fresh)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == 0
    assert (out / "charts" / "speedup_strong.svg").exists() or (out / "report.html").exists()
    again = run(command("--resume", str(out), "--blocks", "2", "--force", "--quiet"))
    assert again.returncode == 0, again.stderr
    assert [row["status"] for row in rows(out)] == ["ok", "ok"]
