"""CIFAR-10 and CIFAR-100 from the files that torchvision uses: found, verified, and read without trusting them.

The official files are Python 2 pickles. They are opened by an unpickler that knows numpy arrays and nothing else, so
a hostile file is refused instead of executed. An archive is read member by member: nothing of it is unpacked to disk.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.data.specs import IMAGE_SHAPE, Arrays, DatasetSpec
from bench.errors import UserError

_LARGEST_FILE_BYTES = 1 << 30


def locate(spec: DatasetSpec, data_root: Path) -> tuple[Path, ...] | None:
    """The files to read: all batch files of the dataset's folder, else its archive, else None.

    Raises UserError when the folder holds only some of the batch files and there is no archive, and when
    `data_root` is the dataset's folder itself.
    """
    batches = tuple(data_root / spec.folder / file.name for file in spec.files)
    missing = [path for path in batches if not path.is_file()]
    if not missing:
        return batches
    archive = data_root / spec.archive
    if archive.is_file():
        return (archive,)
    if len(missing) < len(batches):
        raise UserError(
            f"{missing[0]} is missing while other files of {spec.title} are there; "
            f"complete that folder or remove it, and {spec.title} is downloaded anew"
        )
    if data_root.name == spec.folder and (data_root / spec.files[0].name).is_file():
        raise UserError(f"{data_root} is the folder of {spec.title} itself; as data root give {data_root.parent}")
    return None


def read(spec: DatasetSpec, files: tuple[Path, ...]) -> tuple[Arrays, tuple[str, ...]]:
    """Read what `locate` found: inputs (n, 3, 32, 32) uint8 and targets (n,) int64, and the warnings to pass on.

    Complete files with another MD5 than the official one are used, with a warning. Raises UserError naming the file
    that is unreadable, truncated, no CIFAR batch, or has labels out of range.
    """
    contents = _members(spec, files[0]) if files[0].name == spec.archive else _batches(files)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    unofficial = []
    md5s = {file.name: file.md5 for file in spec.files}
    train_names = [file.name for file in spec.train_files]
    for where, name, content in contents:
        rows = spec.train_rows_per_file if name in train_names else spec.test_rows_per_file
        try:
            parts[name] = parse(content, rows=rows, label_key=spec.label_key, classes=spec.classes)
        except ValueError as error:
            raise UserError(
                f"{where} is damaged or no batch of {spec.title}: {error};\n"
                f"replace it with the one from {spec.url}, or remove it"
            ) from None
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5s[name]:
            unofficial.append(name)
    test_names = [file.name for file in spec.test_files]
    arrays = Arrays(
        train_inputs=np.concatenate([parts[name][0] for name in train_names]),
        train_targets=np.concatenate([parts[name][1] for name in train_names]),
        test_inputs=np.concatenate([parts[name][0] for name in test_names]),
        test_targets=np.concatenate([parts[name][1] for name in test_names]),
    )
    if not unofficial:
        return arrays, ()
    return arrays, (f"{spec.title}: complete, but not the official MD5: {', '.join(sorted(unofficial))}",)


def parse(content: bytes, *, rows: int, label_key: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The images (rows, 3, 32, 32) uint8 and labels (rows,) int64 of one batch file.

    Raises ValueError saying what is wrong with the content.
    """
    batch = _unpickle(content)
    if not isinstance(batch, dict):
        raise ValueError(f"it holds a {type(batch).__name__}, not a dictionary")
    # Keys are str after decoding a Python 2 pickle, bytes where someone saved the file again without decoding.
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", label_key):
        if key not in named:
            raise ValueError(f"it has no {key!r}")
    images = named["data"]
    pixels = int(np.prod(IMAGE_SHAPE))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != pixels:
        raise ValueError(f"its data are not an array of shape (rows, {pixels}) of uint8")
    if len(images) != rows:
        raise ValueError(f"it has {len(images)} images in place of {rows}")
    labels = _labels(named[label_key], rows=rows, classes=classes)
    return np.ascontiguousarray(images).reshape(rows, *IMAGE_SHAPE), labels


def _labels(values: Any, *, rows: int, classes: int) -> np.ndarray:
    try:
        labels = np.asarray(values)
    except ValueError:
        labels = np.empty(0)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError("its labels are not a list of integers")
    if len(labels) != rows:
        raise ValueError(f"it has {len(labels)} labels for {rows} images")
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"label {labels[row]} of image {row} is not between 0 and {classes - 1}")
    return labels.astype(np.int64)


def _batches(files: tuple[Path, ...]) -> Iterator[tuple[str, str, bytes]]:
    """Where, name and content of each batch file."""
    for path in files:
        try:
            if path.stat().st_size > _LARGEST_FILE_BYTES:
                raise UserError(f"{path} is far larger than a batch of this dataset; replace it with the official file")
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"could not read {path}: {error.strerror or error}") from None
        yield str(path), path.name, content


def _members(spec: DatasetSpec, archive: Path) -> Iterator[tuple[str, str, bytes]]:
    """Where, name and content of each batch file inside the archive.

    Only plain files of the expected names are read, and none is written anywhere: links, absolute paths and `..` in
    an archive have nothing to act upon.
    """
    wanted = {f"{spec.folder}/{file.name}": file.name for file in spec.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in wanted or not member.isreg() or member.size > _LARGEST_FILE_BYTES:
                    continue
                content = tar.extractfile(member)
                assert content is not None, "a plain file always has content"
                yield f"{archive} ({member.name})", wanted.pop(member.name), content.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{archive} is damaged or truncated ({error}); remove it, and it is downloaded anew") from None
    except OSError as error:
        raise UserError(f"could not read {archive}: {error.strerror or error}") from None
    if wanted:
        raise UserError(
            f"{archive} is damaged or not the archive of {spec.title}: it holds no {sorted(wanted)[0]}; "
            "remove it, and it is downloaded anew"
        )


def _dtype(code: str, align: Any = False, copy: Any = True) -> np.dtype:
    """`numpy.dtype` as a pickle calls it, for numbers only.

    Old pickles pass 0 and 1 for the flags, which numpy warns about since 2.4.
    """
    dtype = np.dtype(code)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {code!r} is not allowed here")
    return dtype


def _encode(text: str, encoding: str) -> bytes:
    """`_codecs.encode`, which Python 3 writes for bytes in old protocols, and always with latin1."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed here")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Any]:
    """What a pickle may name. numpy's own functions are taken from what its objects return for pickling, because the
    modules that they live in are private and have moved."""
    functions: dict[tuple[str, str], Any] = {
        ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("multiarray", "scalar"): np.int64(0).__reduce__()[0],
        ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    }
    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
        ("_codecs", "encode"): _encode,
    }
    for package in ("numpy.core", "numpy._core"):
        allowed |= {(f"{package}.{module}", name): function for (module, name), function in functions.items()}
    return allowed


_ALLOWED = _allowed()


class _Unpickler(pickle.Unpickler):
    """Builds dictionaries, lists, text, numbers and arrays of numbers; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in a dataset") from None


def _unpickle(content: bytes) -> Any:
    """Raises ValueError for whatever a damaged pickle makes the unpickler raise, which can be almost anything."""
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
