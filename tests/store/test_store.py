"""The results files of a campaign: one writer, whole lines, nothing lost when the disk or a person interferes."""

from __future__ import annotations

import errno
import gzip
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import TOY, command, rows, run, toy
from fault_strategies import Fault, write_table
from generated import noisy_campaign, write_campaign
from stored import a_run, a_step, file_size_limit

from bench.errors import UserError
from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS, names
from bench.results.csvfile import append_rows, encode_header, encode_rows, read_rows
from bench.run.store import Store, new_folder


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_full_disk_leaves_the_earlier_rows_as_they_were(store: Store, room: int) -> None:
    store.add([a_run("one")], [a_step("one", 0)])
    before = store.runs.read_bytes()
    with file_size_limit(len(before) + room), pytest.raises(UserError) as caught:
        store.add([a_run("two")], [])
    assert str(caught.value).startswith(f"could not write {store.runs}: ")
    assert str(caught.value).endswith("; what was measured before is kept")
    assert store.runs.read_bytes() == before
    store.add([a_run("two")], [])
    assert [row["run_id"] for row in read_rows(store.runs, RUN_COLUMNS)] == ["one", "two"]


def test_a_disk_that_takes_the_row_but_does_not_keep_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([a_run("one")], [])
    before = store.runs.read_bytes()

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match="No space left on device; what was measured before is kept"):
        store.add([a_run("two")], [])
    assert store.runs.read_bytes() == before


def test_a_disk_that_refuses_the_note_of_what_runs(store: Store) -> None:
    with file_size_limit(3), pytest.raises(UserError, match=r"could not write .*running\.json"):
        store.note_running("b00-ddp", [1, 2])
    assert sorted(path.name for path in store.folder.iterdir()) == [".lock", "logs"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: an administrator may write everywhere."""

    def refuse(self: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(UserError, match=r"could not write to .*: Permission denied; choose another --out"):
        Store(tmp_path / "campaign")


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "campaign").write_text("")
    with pytest.raises(UserError, match=r"could not write to .*campaign: .*; choose another --out"):
        Store(tmp_path / "campaign")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of the test's own."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting needs an administrator")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("this system mounts no tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_campaign_on_a_disk_that_becomes_full(tmp_path: Path, disk: Path) -> None:
    fault = Fault("fill_disk", 0, "first_step", mark=str(disk / "filler"))
    table = write_table(tmp_path / "faults.py", {"zfill": fault})
    done = run(toy(disk / "out", "--strategy-file", str(table), "--turns", "off", strategies=["ddp", "zfill"]))
    assert done.returncode == 2, done.stderr
    assert re.search(r"could not write .*: No space left on device; what was measured before is kept", done.stderr)
    assert "Traceback" not in done.stderr
    first, *others = read_rows(disk / "out" / "runs.csv", RUN_COLUMNS)
    assert (first["strategy"], first["status"]) == ("ddp", "ok")
    # The last page of a file may have room for one row more.
    assert [(row["strategy"], row["status"]) for row in others] in ([], [("zfill", "crashed")])
    assert len(read_rows(disk / "out" / "steps.csv", STEP_COLUMNS)) == 6


def test_a_disk_that_may_only_be_read(disk: Path) -> None:
    folder = write_campaign(disk / "campaign", noisy_campaign(seed=0, blocks=2))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = run(toy(disk / "out"), timeout=60)
    expected = f"bench: could not write to {disk / 'out'}: Read-only file system; choose another --out\n"
    assert (done.returncode, done.stderr) == (2, expected)
    done = run([sys.executable, "-m", "bench", "report", str(folder)], timeout=60)
    assert done.returncode == 2
    assert re.fullmatch(rf"bench: could not write {folder}\S*: Read-only file system; .* is kept\n", done.stderr)


# -- files that a person or another version changed --------------------------------------------------------------------


def test_two_writers_of_one_folder(store: Store) -> None:
    with pytest.raises(UserError, match=r"another campaign is writing to .*; wait for it or choose another --out"):
        # The lock is another process's business: another object in this one stands for it.
        Store(store.folder)


def test_columns_added_by_hand_are_read_over_and_not_appended_to(store: Store) -> None:
    header, *rest = (encode_header(RUN_COLUMNS) + encode_rows(RUN_COLUMNS, [a_run("one")])).splitlines()
    store.runs.write_text("\n".join([header + ",note", *(line + ",mine" for line in rest)]) + "\n")
    assert [row["run_id"] for row in read_rows(store.runs, RUN_COLUMNS)] == ["one"]
    before = store.runs.read_bytes()
    with pytest.raises(UserError, match="unknown note"):
        store.check()
    with pytest.raises(UserError, match="unknown note"):
        append_rows(store.runs, RUN_COLUMNS, [a_run("two")])
    assert store.runs.read_bytes() == before


def test_the_header_of_another_schema(store: Store) -> None:
    others = [name for name in names(RUN_COLUMNS) if name != "gate"] + ["verdict"]
    store.runs.write_text(",".join(others) + "\n")
    for text in (",".join(others) + "\n", ",".join(others) + "\n1,half"):
        store.runs.write_text(text)
        with pytest.raises(UserError, match=r"runs\.csv has another header .*missing gate; unknown verdict.*--out"):
            store.tidy(epochs=1)
        # Another version's file is not this one's to mend.
        assert store.runs.read_text() == text
    with pytest.raises(UserError, match="lacks the columns gate"):
        read_rows(store.runs, RUN_COLUMNS)


def test_a_file_saved_with_crlf_goes_on(store: Store) -> None:
    store.add([a_run("one", reason='a, "b"')], [])
    store.runs.write_bytes(store.runs.read_bytes().replace(b"\n", b"\r\n"))
    assert store.tidy(epochs=1) == []
    store.check()
    store.add([a_run("two")], [])
    found = read_rows(store.runs, RUN_COLUMNS)
    assert [(row["run_id"], row["reason"]) for row in found] == [("one", 'a, "b"'), ("two", "")]


def test_an_empty_file(store: Store) -> None:
    """As left by a crash between making the file and its first line; said, and begun again."""
    store.runs.touch()
    with pytest.raises(UserError, match=r"runs\.csv is empty"):
        read_rows(store.runs, RUN_COLUMNS)
    assert store.tidy(epochs=1) == ["runs.csv: the file was empty"]
    store.add([a_run("one")], [])
    assert len(read_rows(store.runs, RUN_COLUMNS)) == 1


# -- names -------------------------------------------------------------------------------------------------------------


def test_folders_of_the_same_second_are_told_apart(tmp_path: Path) -> None:
    first = new_folder(tmp_path, host="a b/c", preset="cpu", now=0)
    assert first == tmp_path / "19700101T000000Z-a-b-c-cpu"
    first.mkdir()
    assert new_folder(tmp_path, host="a b/c", preset="cpu", now=0).name == "19700101T000000Z-a-b-c-cpu-2"


def test_private_words_reach_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    store = Store(tmp_path / "campaign", private=["alice", "box-7"])
    try:
        reason = "in /home/alice/my.py, /data/Alice/x, on BOX-7, alice.txt; not malice, box-70"
        store.add([a_run("one", reason=reason, warnings="see /home/alice")], [])
    finally:
        store.close()
    [row] = read_rows(store.runs, RUN_COLUMNS)
    assert row["reason"] == ("in ~/my.py, /data/(left out)/x, on (left out), (left out).txt; not malice, box-70")
    assert row["warnings"] == "see ~"


def test_files_below_a_folder_are_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text('{"folder": "/home/alice/x", "other": "/home/alice2"}')
    (folder / "bytes.log").write_bytes(b"\xff\r\n of Alice")
    (folder / "trace.json.gz").write_bytes(gzip.compress(b"alice"))
    for private in ([], ["alice"]):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        store = Store(tmp_path, private=private)
        store.scrub_files(tmp_path / "logs")
        store.close()
        if not private:
            assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert (folder / "spec.json").read_text() == '{"folder": "~/x", "other": "/home/alice2"}'
    assert (folder / "bytes.log").read_bytes() == b"\xff\r\n of (left out)"
    assert gzip.decompress((folder / "trace.json.gz").read_bytes()) == b"(left out)"


def test_a_trace_that_was_cut_short_does_not_stay(tmp_path: Path) -> None:
    """It cannot be read, so it cannot be shown to hold no private word; and it must not end the campaign."""
    (tmp_path / "logs").mkdir()
    for name, data in {"cut": gzip.compress(b"alice" * 100)[:-9], "other": b"no gzip at all", "empty": b""}.items():
        (tmp_path / "logs" / f"{name}.json.gz").write_bytes(data)
    store = Store(tmp_path, private=["alice"])
    store.scrub_files(tmp_path / "logs")
    store.close()
    assert {path.name for path in (tmp_path / "logs").iterdir()} <= {"empty.json.gz"}


def test_a_home_folder_that_is_the_root_is_no_private_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    store = Store(tmp_path, private=["alice"])
    store.close()
    assert store.scrub("/data/alice/x") == "/data/(left out)/x"


FAILING = """
from strategies.single import Single
class Failing(Single):
    def build(self, *arguments):
        import os, platform
        raise ValueError(f"{platform.node()} {os.environ['LOGNAME']} {__file__}")
STRATEGIES = {'failing': Failing}
"""


def test_an_anonymous_campaign_names_neither_host_nor_user(tmp_path: Path) -> None:
    """In no file of its folder, what the ranks wrote included, nor in the folder's name."""
    home = tmp_path / "home" / "alicetester"
    home.mkdir(parents=True)
    broken = home / "broken.py"
    broken.write_text("STRATEGIES = {'broken': 1}\nraise ImportError('in ' + __file__)\n")
    failing = home / "failing.py"
    failing.write_text(FAILING)
    done = run(
        command(
            "smoke", "--strategies", "single,broken,failing", "--devices", "1", *TOY, "--quiet", "--anonymous",
            "--strategy-file", str(broken), "--strategy-file", str(failing),
        ),
        cwd=tmp_path,
        HOME=str(home),
        LOGNAME="alicetester",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    [folder] = (tmp_path / "results").iterdir()
    found = {row["strategy"]: row for row in rows(folder)}
    assert {name: row["status"] for name, row in found.items()} == {
        "broken": "crashed",
        "single": "ok",
        "failing": "crashed",
    }
    reason = found["broken"]["reason"]
    assert reason == "strategy 'broken' could not be imported from ~/broken.py: ImportError: in ~/broken.py"
    files = [path for path in folder.rglob("*") if path.is_file()]
    # The logs still say what happened and where.
    [stderr] = folder.glob("logs/*failing*/rank0.stderr.log")
    assert 'File "~/failing.py", line 6, in build' in stderr.read_text()
    # Compressed pixels may hold any few letters by chance; what a picture says stands in its SVG twin.
    files = [path for path in files if path.suffix != ".png"]
    names = {path.name for path in files}
    assert {"runs.csv", "environment.json", "matrix.toml", "report.html", "spec.json", "error-0.json"} <= names
    # A host of an everyday name would be found in any text.
    host = platform.node()
    everyday = {"", "cpu", "test", "bench", "single", "main", "linux", "localhost"}
    for word in ("alicetester", *([] if host.lower() in everyday else [host])):
        pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])".encode(), re.IGNORECASE)
        assert [path.name for path in files if pattern.search(path.read_bytes())] == []
        assert word not in folder.name
