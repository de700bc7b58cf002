"""Preparing datasets: found, downloaded or generated; verified; converted once; never half written.

Real CIFAR-10 images are used where STRATEGYBENCH_TEST_DATA names a folder that holds cifar-10-batches-py.
"""

import csv
import dataclasses
import hashlib
import http.server
import io
import json
import multiprocessing
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from bench.data import DATASETS, BatchFile, DatasetSpec, PreparedData, cifar, converted, prepare
from bench.data.download import DownloadFailed, download
from bench.errors import UserError

FOLDER = "tiny-batches-py"
ROWS = {"one": 20, "two": 20, "test": 10}
CLASSES = 4


def raw_images(name: str) -> np.ndarray:
    """The samples of a tiny batch, (rows, 3072) uint8, other ones for each name."""
    start = sum(name.encode())
    return (np.arange(ROWS[name] * 3072) * 7 + start).astype(np.uint8).reshape(-1, 3072)


def raw_labels(name: str) -> list[int]:
    return [(row + len(name)) % CLASSES for row in range(ROWS[name])]


def python2_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote the official ones: protocol 2, byte strings, numpy's modules of that time."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + b"".join(b"M" + struct.pack("<H", size) for size in data.shape) + b"\x86" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", data.nbytes) + data.tobytes() + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def official(name: str) -> bytes:
    return python2_pickle(raw_images(name), raw_labels(name))


def archive_bytes(folder: str = FOLDER) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ROWS:
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(official(name))
            tar.addfile(member, io.BytesIO(official(name)))
    return buffer.getvalue()


ARCHIVE = archive_bytes()

TINY = DatasetSpec(
    name="cifar10",
    title="Tiny",
    url="http://127.0.0.1:9/tiny.tar.gz",
    archive_md5=hashlib.md5(ARCHIVE).hexdigest(),
    folder=FOLDER,
    train_files=tuple(BatchFile(name, hashlib.md5(official(name)).hexdigest()) for name in ("one", "two")),
    test_files=(BatchFile("test", hashlib.md5(official("test")).hexdigest()),),
    train_rows_per_file=20,
    test_rows_per_file=10,
    label_key="labels",
    classes=CLASSES,
)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own, and no proxy between it and its server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with the tiny dataset's batch files in it."""
    folder = tmp_path / "data" / FOLDER
    folder.mkdir(parents=True)
    for name in ROWS:
        (folder / name).write_bytes(official(name))
    return tmp_path / "data"


def run(root: Path | None, dataset: str = "cifar10", *, spec: DatasetSpec = TINY, **options: Any) -> PreparedData:
    return prepare(dataset, **{"kind": "cifar10", "data_root": root, "seed": 0, "specs": {"cifar10": spec}} | options)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith((".part", ".tmp"))]


def converted_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("strategybench-*"))


def assert_tiny(data: PreparedData) -> None:
    """The prepared arrays are the bytes that the test wrote, in the files' order."""
    images = np.load(data.train_inputs, mmap_mode="r")
    assert images.shape == (40, 3, 32, 32)
    assert images.dtype == np.uint8
    assert images.tobytes() == raw_images("one").tobytes() + raw_images("two").tobytes()
    # Channel, row and column are the slowest to the fastest index of the 3,072 numbers of an image.
    assert images[3, 2, 5, 7] == raw_images("one")[3, 2 * 1024 + 5 * 32 + 7]
    labels = np.load(data.train_targets)
    assert labels.dtype == np.int64
    assert labels.tolist() == raw_labels("one") + raw_labels("two")
    assert np.load(data.test_inputs).tobytes() == raw_images("test").tobytes()
    assert np.load(data.test_targets).tolist() == raw_labels("test")
    assert (data.name, data.train_count, data.test_count, data.synthetic) == ("cifar10", 40, 10, False)


# ---------------------------------------------------------------------------------------------- found on the disk


@pytest.mark.parametrize("dataset", ["cifar10", "auto"])
def test_batch_files_are_converted(root: Path, dataset: str) -> None:
    data = run(root, dataset)
    assert_tiny(data)
    assert data.warnings == ()
    assert data.notice == ""
    assert data.train_inputs.parent == root / f"strategybench-cifar10-{data.fingerprint}"
    assert not leftovers(root)


def test_fingerprint_is_that_of_the_samples_and_labels(root: Path) -> None:
    digest = hashlib.sha256()
    for names in (("one", "two"), ("test",)):
        digest.update(b"".join(raw_images(name).tobytes() for name in names))
        labels = [label for name in names for label in raw_labels(name)]
        digest.update(struct.pack(f"={len(labels)}q", *labels))
    assert run(root).fingerprint == digest.hexdigest()[:16]


def test_second_run_reads_no_source(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(root)
    monkeypatch.setattr(cifar, "read", lambda *_: pytest.fail("sources were read again"))
    assert run(root) == first


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [str, bytes])
def test_files_saved_again_are_used_with_a_warning(root: Path, protocol: int, kind: type) -> None:
    key: Callable[[str], Any] = (lambda text: text.encode()) if kind is bytes else str
    batch = {key("data"): raw_images("two"), key("labels"): np.array(raw_labels("two")), key("batch_label"): key("x")}
    (root / FOLDER / "two").write_bytes(pickle.dumps(batch, protocol=protocol))
    data = run(root)
    assert_tiny(data)
    assert data.warnings == ("Tiny: complete, but not the official MD5: two",)
    assert run(root).warnings == data.warnings, "the warning comes with every later run too"


def test_changed_source_is_noticed_and_the_old_folder_stays(root: Path) -> None:
    before = run(root)
    labels = raw_labels("one")
    labels[0] = (labels[0] + 1) % CLASSES
    (root / FOLDER / "one").write_bytes(python2_pickle(raw_images("one"), labels))
    after = run(root)
    assert after.fingerprint != before.fingerprint
    assert np.load(after.train_targets)[0] == labels[0]
    assert_tiny(before)


def test_touched_source_keeps_the_converted_files(root: Path) -> None:
    before = run(root)
    inode = before.train_inputs.stat().st_ino
    os.utime(root / FOLDER / "one", ns=(1, 1))
    assert run(root) == before
    assert before.train_inputs.stat().st_ino == inode
    assert len(converted_names(root)) == 1


@pytest.mark.parametrize("damage", ["shorter", "other bytes", "gone", "description"])
def test_damaged_converted_file_is_made_again(root: Path, damage: str) -> None:
    data = run(root)
    path = data.train_inputs
    content = bytearray(path.read_bytes())
    if damage == "shorter":
        path.write_bytes(content[:-1])
    elif damage == "other bytes":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "gone":
        path.unlink()
    else:
        (path.parent / "dataset.json").write_text("{")
    messages: list[str] = []
    assert run(root, report=messages.append) == data
    assert_tiny(data)
    assert not leftovers(root)
    assert messages == ([] if damage == "description" else [f"{path.parent} is damaged; converting again"])


def test_new_time_but_same_content_is_not_damage(root: Path) -> None:
    data = run(root)
    os.utime(data.train_inputs, ns=(1, 1))
    messages: list[str] = []
    assert run(root, report=messages.append) == data
    assert messages == []


def test_leftovers_of_a_killed_process_go(root: Path) -> None:
    stale = root / ".strategybench-cifar10.1.tmp"
    stale.mkdir()
    (stale / "train_inputs.npy").write_bytes(b"half")
    run(root)
    assert not leftovers(root)


# ---------------------------------------------------------------------------------------------- damaged or hostile


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_hostile_pickle_is_refused_and_not_executed(root: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = pickle.dumps({"data": raw_images("two"), "labels": Hostile(marker)})
    (root / FOLDER / "two").write_bytes(content)
    with pytest.raises(UserError, match=r"two is damaged or no batch of Tiny: it names posix\.mkdir"):
        run(root)
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "the plain unpickler would have executed it"


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(V1\ntR.",
        b"c__builtin__\neval\n(V1\ntR.",
        b"cnumpy\nfromfile\n(V/etc/passwd\ntR.",
        b"c_codecs\nencode\n(Vabc\nVzip\ntR.",
        pickle.dumps({"data": np.array([{}], dtype=object), "labels": []}),
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
    ],
    ids=["eval", "eval of Python 2", "other function of numpy", "other codec", "objects", "dotted name"],
)
def test_other_names_in_a_pickle_are_refused(root: Path, content: bytes) -> None:
    (root / FOLDER / "one").write_bytes(content)
    with pytest.raises(UserError, match=r"one is damaged .*(has no place in a dataset|not allowed here)"):
        run(root)


def batch(**changes: Any) -> bytes:
    return pickle.dumps({"data": raw_images("two"), "labels": raw_labels("two")} | changes)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (official("two")[:-50], "pickle data was truncated|Ran out of input"),
        (b"", "Ran out of input"),
        (b"<html>not found</html>", "invalid load key"),
        (pickle.dumps([1, 2]), "it holds a list, not a dictionary"),
        (pickle.dumps({"labels": []}), "it has no 'data'"),
        (pickle.dumps({"data": raw_images("two"), "fine_labels": []}), "it has no 'labels'"),
        (batch(data=raw_images("two")[:19], labels=raw_labels("two")[:19]), "it has 19 images in place of 20"),
        (batch(data=raw_images("two")[:, :100]), r"not an array of shape \(rows, 3072\) of uint8"),
        (batch(data=raw_images("two").astype(np.int64)), r"not an array of shape \(rows, 3072\) of uint8"),
        (batch(data=raw_images("two").tolist()), r"not an array of shape \(rows, 3072\) of uint8"),
        (batch(labels=raw_labels("two")[:-1]), "it has 19 labels for 20 images"),
        (batch(labels=[*raw_labels("two")[:-1], 4]), "label 4 of image 19 is not between 0 and 3"),
        (batch(labels=[-1, *raw_labels("two")[1:]]), "label -1 of image 0 is not between 0 and 3"),
        (batch(labels=["cat"] * 20), "its labels are not a list of integers"),
        (batch(labels=[[1], [2, 3]]), "its labels are not a list of integers"),
        (batch(labels=[0.5] * 20), "its labels are not a list of integers"),
    ],
)
@pytest.mark.parametrize("dataset", ["cifar10", "auto"])
def test_damaged_batch_file_is_named(root: Path, dataset: str, content: bytes, reason: str) -> None:
    path = root / FOLDER / "two"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        run(root, dataset)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged or no batch of Tiny: ")
    assert len(message.splitlines()) == 2
    assert not converted_names(root)
    assert not leftovers(root)


def test_incomplete_folder_is_named(root: Path) -> None:
    (root / FOLDER / "two").unlink()
    with pytest.raises(UserError, match=r"tiny-batches-py/two is missing while other files of Tiny are there"):
        run(root, "auto")


def test_folder_of_the_dataset_as_data_root(root: Path) -> None:
    with pytest.raises(UserError, match=f"as data root give {root}$"):
        run(root / FOLDER, "auto")


# ---------------------------------------------------------------------------------------------- the archive


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archived" / "tiny.tar.gz"
    path.parent.mkdir()
    path.write_bytes(ARCHIVE)
    return path


def test_archive_is_read(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = run(archive.parent)
    assert_tiny(data)
    assert data.warnings == ()
    monkeypatch.setattr(cifar, "read", lambda *_: pytest.fail("the archive was read again"))
    assert run(archive.parent) == data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ARCHIVE[: len(ARCHIVE) // 2], "is damaged or truncated"),
        (b"<html>", "is damaged or truncated"),
        (b"", "is damaged or truncated"),
        (ARCHIVE[:10] + b"\0" * 50 + ARCHIVE[60:], "is damaged or truncated"),
        (archive_bytes("elsewhere"), f"it holds no {FOLDER}/one"),
    ],
    ids=["truncated", "page", "empty", "damaged", "other"],
)
def test_damaged_archive_is_named(archive: Path, content: bytes, reason: str) -> None:
    archive.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        run(archive.parent, "auto")
    assert str(caught.value).startswith(str(archive))
    assert not leftovers(archive.parent)


def test_links_in_an_archive_are_not_followed(archive: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(official("one"))
    with tarfile.open(archive, "w:gz") as tar:
        for name in ROWS:
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, str(secret)
            tar.addfile(member)
    with pytest.raises(UserError, match="holds no"):
        run(archive.parent)
    assert sorted(path.name for path in archive.parent.iterdir() if path.name[0] != ".") == ["tiny.tar.gz"]


# ---------------------------------------------------------------------------------------------- downloads


TRICKLES, TRICKLE_SECONDS = 10, 0.15


class Handler(http.server.BaseHTTPRequestHandler):
    """Paths: /good, /wrong (other bytes), /short (closes early), /stall (falls silent), /slow; all else is a 404.

    /slow sends its bytes in TRICKLES parts with a pause before each.
    """

    release = threading.Event()

    def do_GET(self) -> None:
        what = self.path.split("/")[1]
        if what not in ("good", "wrong", "short", "stall", "slow"):
            self.send_error(404)
            return
        body = ARCHIVE[:-1] + b"?" if what == "wrong" else ARCHIVE
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if what == "slow":
            for part in range(TRICKLES):
                self.release.wait(TRICKLE_SECONDS)
                self.wfile.write(body[part * len(body) // TRICKLES : (part + 1) * len(body) // TRICKLES])
                self.wfile.flush()
            return
        self.wfile.write(body if what in ("good", "wrong") else body[: len(body) // 2])
        self.wfile.flush()
        if what == "stall":
            self.release.wait(30)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.release.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            Handler.release.set()
            running.shutdown()
            thread.join()


def closed_port_url() -> str:
    """A URL at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/tiny.tar.gz"


def at(url: str) -> DatasetSpec:
    return dataclasses.replace(TINY, url=url)


@pytest.mark.parametrize("dataset", ["cifar10", "auto"])
def test_download(tmp_path: Path, server: str, dataset: str) -> None:
    seen: list[tuple[int, int]] = []
    root = tmp_path / "new" / "folder"
    data = run(root, dataset, spec=at(f"{server}/good/tiny.tar.gz"), progress=lambda *step: seen.append(step))
    assert_tiny(data)
    assert data.notice == ""
    assert (root / "tiny.tar.gz").read_bytes() == ARCHIVE
    assert seen[-1] == (len(ARCHIVE), len(ARCHIVE))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not leftovers(root)


FAILURES = {
    "wrong": "the file that came has MD5 [0-9a-f]{32}, not [0-9a-f]{32}",
    "short": f"the connection closed after {len(ARCHIVE) // 2} of {len(ARCHIVE)} bytes",
    "missing": "the server answered 404 Not Found",
    "refused": "Connection refused",
    "unknown host": "[^;]*(not known|resolution|no address|nodename)[^;]*",
}


def url_of(what: str, server: str) -> str:
    if what == "unknown host":
        return "http://no-such-host.invalid/tiny.tar.gz"
    return closed_port_url() if what == "refused" else f"{server}/{what}/tiny.tar.gz"


@pytest.mark.parametrize("what", FAILURES)
def test_failed_download_of_a_named_dataset(tmp_path: Path, server: str, what: str) -> None:
    url = url_of(what, server)
    with pytest.raises(UserError, match=f"could not be downloaded from {url}: {FAILURES[what]};\n") as caught:
        run(tmp_path, spec=at(url))
    assert f"put tiny.tar.gz into {tmp_path} by hand" in str(caught.value)
    assert not leftovers(tmp_path)
    assert not (tmp_path / "tiny.tar.gz").exists()


@pytest.mark.parametrize("what", FAILURES)
def test_auto_falls_back_to_synthetic_with_a_notice(tmp_path: Path, server: str, what: str) -> None:
    url = url_of(what, server)
    data = run(tmp_path, "auto", spec=at(url))
    assert (data.name, data.synthetic, data.train_count, data.test_count) == ("synthetic", True, 40, 10)
    assert data.notice.startswith("Synthetic images in place of Tiny, which was neither found nor downloaded: ")
    assert str(tmp_path) not in data.notice, "captions are published"
    assert not leftovers(tmp_path)


OTHER_SOURCE = """
import dataclasses, sys
sys.path.insert(0, {tests!r})
from test_data import TINY
from bench.data import DATASETS
DATASETS["cifar10"] = dataclasses.replace(TINY, url={url!r}, archive_md5={md5!r})
from bench.cli import main
main()
"""


def test_a_download_may_take_longer_than_a_run(tmp_path: Path, server: str) -> None:
    """The limit of a run begins with its processes: by then the data are there, however long they took."""
    tests, url = str(Path(__file__).parent), f"{server}/slow/tiny.tar.gz"
    program = OTHER_SOURCE.format(tests=tests, url=url, md5=TINY.archive_md5)
    words = "run smoke --strategies single --devices 1 --dataset cifar10 --batch 4 --steps 2 --no-control --timeout 0.5"
    words += f" --data-root {tmp_path / 'data'} --out {tmp_path / 'out'}"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()], capture_output=True, text=True, timeout=120, check=False
    )
    assert time.monotonic() - begun > TRICKLES * TRICKLE_SECONDS > 0.5
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "data" / "tiny.tar.gz").read_bytes() == ARCHIVE
    with (tmp_path / "out" / "runs.csv").open(encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["dataset"], row["epoch_samples"], row["status"]) == ("cifar10", "40", "timeout")
    assert row["reason"].startswith("no result after 0.5 s")


def test_auto_without_downloads(tmp_path: Path) -> None:
    data = run(tmp_path, "auto", download_limit_seconds=0)
    assert data.synthetic
    assert data.notice.endswith("downloading is switched off.")


def test_stalled_download(tmp_path: Path, server: str) -> None:
    target = tmp_path / "file"
    with pytest.raises(DownloadFailed, match=r"^no answer for 0\.2 s$"):
        download(f"{server}/stall", target, md5="", timeout_seconds=0.2)
    assert list(tmp_path.iterdir()) == []


def test_download_over_its_limit(tmp_path: Path, server: str) -> None:
    now = iter([0.0, 0.0, 61.0])
    with pytest.raises(DownloadFailed, match=r"^the time limit came after 0\.\d of 0\.\d MB$"):
        download(
            f"{server}/stall", tmp_path / "file", md5="", timeout_seconds=50, limit_seconds=60, clock=lambda: next(now)
        )
    assert list(tmp_path.iterdir()) == []


def test_interrupted_download_leaves_nothing(tmp_path: Path, server: str) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{server}/good", tmp_path / "file", md5="", timeout_seconds=5, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- where it is written


def unwritable(monkeypatch: pytest.MonkeyPatch, *roots: Path) -> None:
    """Make folders read-only in the eyes of the suite; permissions would not do for a superuser."""
    monkeypatch.setattr(converted.os, "access", lambda path, mode: Path(path) not in roots)


def test_read_only_root_sends_converted_files_to_the_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(root.rglob("*"))
    unwritable(monkeypatch, root)
    data = run(root)
    assert_tiny(data)
    assert data.train_inputs.is_relative_to(tmp_path / "cache" / "strategybench")
    assert sorted(root.rglob("*")) == before
    monkeypatch.setattr(cifar, "read", lambda *_: pytest.fail("sources were read again"))
    assert run(root) == data


def test_default_root_is_the_cache_folder(tmp_path: Path) -> None:
    data = run(None, "synthetic")
    assert data.train_inputs.is_relative_to(tmp_path / "cache" / "strategybench")


def test_nothing_writable(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unwritable(monkeypatch, root, tmp_path / "cache" / "strategybench")
    with pytest.raises(
        UserError,
        match=r"no folder for the data can be written to: .*\(Permission denied\), .*\(Permission denied\);\n",
    ):
        run(root, report=pytest.fail)


def test_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; as data root give a folder"):
        run(tmp_path / "file")
    with pytest.raises(UserError, match="the data folder cannot be written to"):
        run(tmp_path / "file" / "below")
    assert run(tmp_path / "file" / "below", "auto").synthetic


def test_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"could not write the converted data to .*: No space left on device"):
        run(root)
    assert not converted_names(root)
    assert not leftovers(root)


# ---------------------------------------------------------------------------------------------- two at once


def _prepare_in_child(root: Path, pipe: Connection) -> None:
    conversions = []
    read = cifar.read
    cifar.read = lambda *args: (conversions.append(1), read(*args))[1]  # type: ignore[func-returns-value]
    data = run(root, report=pipe.send)
    pipe.send((data, len(conversions)))


def test_two_processes_at_once_convert_once(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    with FileLock(root / ".strategybench.lock"):
        for _ in range(2):
            ours, theirs = context.Pipe()
            children.append(context.Process(target=_prepare_in_child, args=(root, theirs)))
            children[-1].start()
            pipes.append(ours)
        for pipe in pipes:
            assert pipe.poll(60)
            assert pipe.recv() == f"waiting for another process that prepares data in {root}"
    results = []
    for pipe, child in zip(pipes, children, strict=True):
        assert pipe.poll(60)
        results.append(pipe.recv())
        child.join(60)
        assert child.exitcode == 0
    assert results[0][0] == results[1][0]
    assert results[0][1] + results[1][1] == 1
    assert_tiny(results[0][0])
    assert len(converted_names(root)) == 1
    assert not leftovers(root)


# ---------------------------------------------------------------------------------------------- synthetic data


def test_synthetic_images(tmp_path: Path) -> None:
    data = run(tmp_path, "synthetic")
    assert (data.name, data.synthetic, data.warnings, data.notice) == ("synthetic", True, (), "")
    images, labels = np.load(data.train_inputs), np.load(data.train_targets)
    assert (images.shape, images.dtype) == ((40, 3, 32, 32), np.uint8)
    assert (labels.shape, labels.dtype) == ((40,), np.int64)
    assert np.bincount(labels).tolist() == [10, 10, 10, 10]
    assert np.load(data.test_inputs).shape == (10, 3, 32, 32)
    # Test images belong to the class of the nearest mean over train images: there is something to learn.
    means = np.stack([images[labels == label].mean(axis=0) for label in range(CLASSES)])
    distances = ((np.load(data.test_inputs)[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert distances.argmin(axis=1).tolist() == np.load(data.test_targets).tolist()
    # Noise of 64 equally likely levels has a standard deviation of sqrt((64**2 - 1) / 12) = 18.47.
    assert (images - means[labels]).std() == pytest.approx(18.47 * np.sqrt(0.9), rel=0.02)
    assert images.min() >= 32
    assert images.max() <= 254


def test_synthetic_is_decided_by_the_seed(tmp_path: Path) -> None:
    first = run(tmp_path / "a", "synthetic", seed=1)
    assert run(tmp_path / "b", "synthetic", seed=1).fingerprint == first.fingerprint
    assert run(tmp_path / "a", "synthetic", seed=2).fingerprint != first.fingerprint
    assert run(tmp_path / "a", "synthetic", seed=1) == first
    assert len(converted_names(tmp_path / "a")) == 2


def test_synthetic_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, "synthetic")
    monkeypatch.setattr("bench.data.synthetic.images", lambda **_: pytest.fail("generated again"))
    assert run(tmp_path, "synthetic") == first


@pytest.mark.parametrize("dataset", ["auto", "synthetic"])
def test_toy_vectors(tmp_path: Path, dataset: str) -> None:
    data = prepare(dataset, kind="toy", data_root=tmp_path, seed=3)
    shapes = {
        "train_inputs": (4096, 10),
        "train_targets": (4096, 5),
        "test_inputs": (512, 10),
        "test_targets": (512, 5),
    }
    for name, shape in shapes.items():
        array = np.load(getattr(data, name), mmap_mode="r")
        assert (array.shape, array.dtype) == (shape, np.float32)
    assert (data.name, data.synthetic, data.notice, data.train_count, data.test_count) == (
        "synthetic",
        True,
        "",
        4096,
        512,
    )
    # The targets are a linear map with noise of standard deviation 0.1: least squares leaves just that.
    inputs, targets = np.load(data.train_inputs), np.load(data.train_targets)
    solution = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    assert (np.load(data.test_inputs) @ solution - np.load(data.test_targets)).std() == pytest.approx(0.1, rel=0.1)


# ---------------------------------------------------------------------------------------------- arguments and bounds


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        ("mnist", "cifar10", "unknown dataset 'mnist'; known: auto, cifar10, cifar100, synthetic"),
        ("cifar10", "cifar100", "dataset cifar10 does not fit this workload, which takes auto, cifar100 or synthetic"),
        ("cifar100", "cifar10", "dataset cifar100 does not fit this workload, which takes auto, cifar10 or synthetic"),
        ("cifar10", "toy", "dataset cifar10 does not fit this workload, which takes auto or synthetic"),
    ],
)
def test_dataset_that_does_not_fit(tmp_path: Path, dataset: str, kind: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(dataset, kind=kind, data_root=tmp_path, seed=0)
    assert str(caught.value) == message


def test_negative_seed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seed -1 is negative"):
        run(tmp_path, "synthetic", seed=-1)


def test_published_sizes() -> None:
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        spec = DATASETS[name]
        assert (spec.name, spec.train_count, spec.test_count, spec.classes) == (name, 50_000, 10_000, classes)


def test_checksums_are_those_of_torchvision() -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    for spec, theirs in ((DATASETS["cifar10"], datasets.CIFAR10), (DATASETS["cifar100"], datasets.CIFAR100)):
        assert [[file.name, file.md5] for file in spec.train_files] == theirs.train_list
        assert [[file.name, file.md5] for file in spec.test_files] == theirs.test_list
        assert (spec.url, spec.archive, spec.archive_md5) == (theirs.url, theirs.filename, theirs.tgz_md5)
        assert spec.folder == theirs.base_folder


def test_no_torch_is_imported() -> None:
    code = "import sys, bench.data; print('numpy' in sys.modules, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]


# ---------------------------------------------------------------------------------------------- the real images


@pytest.fixture
def real_root(tmp_path: Path) -> Path:
    """A data root of the test's own that links to the real batch files, so that nothing is written beside them."""
    named = os.environ.get("STRATEGYBENCH_TEST_DATA", "")
    source = Path(named).absolute() / "cifar-10-batches-py"
    if not named or not source.is_dir():
        pytest.skip("real CIFAR-10 images: STRATEGYBENCH_TEST_DATA names no folder with cifar-10-batches-py")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "cifar-10-batches-py").symlink_to(source)
    return tmp_path / "real"


def test_real_images(real_root: Path) -> None:
    data = prepare("auto", kind="cifar10", data_root=real_root, seed=0)
    assert (data.name, data.synthetic, data.notice) == ("cifar10", False, "")
    images, labels = np.load(data.train_inputs, mmap_mode="r"), np.load(data.train_targets)
    assert images.shape == (50_000, 3, 32, 32)
    assert np.bincount(labels).tolist() == [5_000] * 10
    assert np.bincount(np.load(data.test_targets)).tolist() == [1_000] * 10
    with (real_root / "cifar-10-batches-py" / "data_batch_1").open("rb") as file:
        plain = pickle.load(file, encoding="latin1")
    assert images[0].reshape(-1).tolist() == plain["data"][0].tolist()
    assert labels[:10_000].tolist() == plain["labels"]
    with (real_root / "cifar-10-batches-py" / "test_batch").open("rb") as file:
        plain = pickle.load(file, encoding="latin1")
    assert np.array_equal(np.load(data.test_inputs, mmap_mode="r").reshape(10_000, -1), plain["data"])
    shutil.rmtree(data.train_inputs.parent)  # 184 MB, which pytest would keep for three runs


def test_description_is_readable(root: Path) -> None:
    data = run(root)
    description = json.loads((data.train_inputs.parent / "dataset.json").read_text())
    assert description["fingerprint"] == data.fingerprint
    recorded = description["files"]["train_inputs.npy"]
    assert recorded["bytes"] == data.train_inputs.stat().st_size
    assert recorded["sha256"] == hashlib.sha256(data.train_inputs.read_bytes()).hexdigest()
    assert list(description["recipe"]["sources"]) == [str(root / FOLDER / name) for name in ("one", "two", "test")]
