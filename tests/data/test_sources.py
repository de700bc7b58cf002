"""Datasets that are found: verified, converted once, never half written; damaged or hostile files are named."""

import hashlib
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_dataset import (
    ARCHIVE,
    CLASSES,
    FOLDER,
    ROWS,
    archive_bytes,
    assert_tiny,
    converted_names,
    leftovers,
    official,
    python2_pickle,
    raw_images,
    raw_labels,
    run,
)

from bench.data import cifar
from bench.errors import UserError

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
