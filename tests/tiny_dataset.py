"""A dataset of CIFAR-10's shape and forty samples, as files, as an archive and as prepared arrays."""

import hashlib
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import BatchFile, DatasetSpec, PreparedData, prepare

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
