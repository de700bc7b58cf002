"""Files that a spreadsheet or an editor has changed: read as they are meant, or refused with the line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from generated import noisy_campaign, write_campaign

from bench.errors import UserError
from bench.homes import cache_folder, expanded
from bench.plan.toml import line_of, toml_value
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import check_header, read_rows
from bench.results.folder import read_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_campaign(tmp_path / "c", noisy_campaign(seed=0, blocks=2)) / "runs.csv"


def changed(runs: Path, *, line: int, text: str) -> Path:
    """The file with one line, from 1, in another way."""
    lines = runs.read_text().splitlines()
    lines[line - 1] = text
    runs.write_text("\n".join(lines) + "\n")
    return runs


def line_in(runs: Path, number: int) -> str:
    return runs.read_text().splitlines()[number - 1]


@pytest.mark.parametrize("more", [",", ",,,", "\r"])
def test_columns_without_a_name_are_passed_over(runs: Path, more: str) -> None:
    before = read_runs(runs)
    runs.write_text("".join(f"{line}{more}\n" for line in runs.read_text().splitlines()))
    assert read_runs(runs) == before


def test_rows_of_commas_and_blank_lines_are_passed_over(runs: Path) -> None:
    before = read_runs(runs)
    commas = "," * (len(RUN_COLUMNS) - 1)
    runs.write_text(runs.read_text().replace("\n", f"\n\n{commas}\n"))
    assert read_runs(runs) == before


def test_truth_in_capitals_is_truth(runs: Path) -> None:
    before = read_runs(runs)
    runs.write_text(runs.read_text().replace(",true", ",TRUE").replace(",false", ",FALSE"))
    assert read_runs(runs) == before


@pytest.mark.parametrize("number", [2, 4])
def test_a_row_that_is_longer_than_the_header_is_refused(runs: Path, number: int) -> None:
    columns = len(RUN_COLUMNS)
    changed(runs, line=number, text="new," + line_in(runs, number))
    with pytest.raises(UserError, match=rf"line {number}: {columns + 1} values for {columns} columns"):
        read_runs(runs)


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_told(runs: Path, mark: str, name: str) -> None:
    runs.write_text(runs.read_text().replace(",", mark))
    with pytest.raises(UserError, match=f"has {name} between its values; save it as CSV with commas"):
        read_runs(runs)


def test_a_quote_that_nothing_closes_is_told(runs: Path) -> None:
    changed(runs, line=3, text='"' + line_in(runs, 3))
    with pytest.raises(UserError, match=r"runs\.csv, at or before line \d+: "):
        read_runs(runs)


def test_lines_are_those_of_the_file(runs: Path) -> None:
    """Blank lines count, in what the reader says and in what is said of a row's values."""
    text = runs.read_text().replace("\n", "\n\n")
    runs.write_text(text.replace(",ok,", ",fine,", 1))
    line = 1 + text[: text.index(",ok,")].count("\n")
    with pytest.raises(UserError, match=f"line {line}: status 'fine'"):
        read_runs(runs)
    runs.write_text(text.replace(",ok,", ",ok,,", 1))
    with pytest.raises(UserError, match=f"line {line}: "):
        read_rows(runs, RUN_COLUMNS)


def test_a_byte_order_mark_hides_in_no_message(runs: Path) -> None:
    text = "\ufeff" + runs.read_text()
    runs.write_text(text, encoding="utf-8")
    check_header(runs, RUN_COLUMNS)
    runs.write_text(text.replace("gate,", "verdict,", 1), encoding="utf-8")
    with pytest.raises(UserError, match="missing gate; unknown verdict") as told:
        check_header(runs, RUN_COLUMNS)
    assert "\ufeff" not in str(told.value)
    assert "schema_version" not in str(told.value)


# -- names and folders -------------------------------------------------------------------------------------------------


def test_a_name_that_is_no_text_does_not_make_a_file_unreadable() -> None:
    import tomllib

    name = os.fsdecode(b"results/\xff")
    assert tomllib.loads(f"command = {toml_value(name)}") == {"command": "results/\\udcff"}


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="has no home folder; set HOME or XDG_CACHE_HOME, or give --data-root"):
        cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/strategybench")


def test_a_tilde_of_nobody_is_a_message() -> None:
    with pytest.raises(UserError, match="~nobody-of-this-name/x: there is no home folder for ~; give the whole path"):
        expanded(Path("~nobody-of-this-name/x"))
    assert expanded(Path("/x")) == Path("/x")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="becoming nobody needs an administrator")
def test_the_command_runs_for_a_user_without_a_home_who_says_where_data_are() -> None:
    script = (
        "import os, sys; from pathlib import Path; from bench.data import preparation;"
        "os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None); os.setuid(54321);"
        "print(preparation._roots(Path('/')))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "(PosixPath('/'), [PosixPath('/')])\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("steps = 3\n", 1),
        ('note = """\nsteps = 3\n"""\nsteps = 4\n', 4),
        ("note = '''\nsteps = 3\n'''\nsteps = 4\n", 4),
        ('note = """a "quoted" word\nsteps = 3 """\nsteps = 4\n', 3),
        ('note = "a \\" quote" # """\nsteps = 4\n', 2),
        ('note = \'"""\'\nsteps = 4\n', 2),
        ('note = """one line"""\nsteps = 4\n', 2),
    ],
)
def test_what_stands_in_a_string_of_several_lines_is_no_key(text: str, line: int) -> None:
    assert line_of(text, "steps", None) == line
