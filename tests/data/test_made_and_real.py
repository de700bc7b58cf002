"""Synthetic samples, the arguments of `prepare`, and the real images.

Real CIFAR-10 images are used where STRATEGYBENCH_TEST_DATA names a folder that holds cifar-10-batches-py.
"""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_dataset import CLASSES, converted_names, run

from bench.data import DATASETS, prepare
from bench.errors import UserError

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
