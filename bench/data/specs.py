"""What the datasets are: names, files, checksums and shapes, and the values that the other parts exchange."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IMAGE_SHAPE = (3, 32, 32)

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes in all (0 where the server does not say)."""

Report = Callable[[str], None]
"""Called with one line for the person who waits."""


@dataclass(frozen=True)
class BatchFile:
    """One file of a dataset. `md5` is the official one, in hex."""

    name: str
    md5: str


@dataclass(frozen=True)
class DatasetSpec:
    """One published dataset, as torchvision stores it under a data root: `folder/<batch file>`, or `archive`."""

    name: str
    title: str
    url: str
    archive_md5: str
    folder: str
    train_files: tuple[BatchFile, ...]
    test_files: tuple[BatchFile, ...]
    train_rows_per_file: int
    test_rows_per_file: int
    label_key: str
    classes: int

    @property
    def archive(self) -> str:
        """File name of the archive, the last part of its URL."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def files(self) -> tuple[BatchFile, ...]:
        return self.train_files + self.test_files

    @property
    def train_count(self) -> int:
        return self.train_rows_per_file * len(self.train_files)

    @property
    def test_count(self) -> int:
        return self.test_rows_per_file * len(self.test_files)


@dataclass(frozen=True)
class Arrays:
    """A whole dataset in memory: inputs (n, 3, 32, 32) uint8 with targets (n,) int64, or float32 vectors for both."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


@dataclass(frozen=True)
class PreparedData:
    """A dataset ready for the workers: paths of .npy files, to be opened with `np.load(path, mmap_mode="r")`.

    Images are (n, 3, 32, 32) uint8 with targets (n,) int64; the toy workload's are (n, 10) and (n, 5) float32.
    `name` is what was used, which with `auto` may differ from what was asked for. `fingerprint` is the first
    16 hex digits of the SHA-256 over the bytes of all samples and labels. `notice` is "" or a sentence that belongs in
    the caption of every table drawn from these data.
    """

    name: str
    train_inputs: Path
    train_targets: Path
    test_inputs: Path
    test_targets: Path
    train_count: int
    test_count: int
    fingerprint: str
    synthetic: bool
    warnings: tuple[str, ...] = ()
    notice: str = ""


DATASETS: dict[str, DatasetSpec] = {
    "cifar10": DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train_files=(
            BatchFile("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            BatchFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            BatchFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            BatchFile("data_batch_4", "634d18415352ddfa80567beed471001a"),
            BatchFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        test_files=(BatchFile("test_batch", "40351d587109b95175f43aff81a1287e"),),
        train_rows_per_file=10_000,
        test_rows_per_file=10_000,
        label_key="labels",
        classes=10,
    ),
    "cifar100": DatasetSpec(
        name="cifar100",
        title="CIFAR-100",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train_files=(BatchFile("train", "16019d7e3df5f24257cddd939b257f8d"),),
        test_files=(BatchFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
        train_rows_per_file=50_000,
        test_rows_per_file=10_000,
        label_key="fine_labels",
        classes=100,
    ),
}
"""The real datasets. Synthetic images take the shapes and counts of the one that they stand in for."""
