"""Datasets that are fetched from a server of the test's own: whole, within their time, or told why not."""

import csv
import dataclasses
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_dataset import (
    ARCHIVE,
    TINY,
    assert_tiny,
    leftovers,
    run,
)

from bench.data import DatasetSpec
from bench.data.download import DownloadFailed, download
from bench.errors import UserError

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
from tiny_dataset import TINY
from bench.data import DATASETS
DATASETS["cifar10"] = dataclasses.replace(TINY, url={url!r}, archive_md5={md5!r})
from bench.cli import main
main()
"""


def test_a_download_may_take_longer_than_a_run(tmp_path: Path, server: str) -> None:
    """The limit of a run begins with its processes: by then the data are there, however long they took."""
    tests, url = str(Path(__file__).parents[1]), f"{server}/slow/tiny.tar.gz"
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
