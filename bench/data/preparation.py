"""From the name of a dataset to files that workers can map: the one entry point, `prepare`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.data import cifar, converted, synthetic
from bench.data.download import DownloadFailed, download
from bench.data.specs import DATASETS, Arrays, DatasetSpec, PreparedData, Progress, Report
from bench.errors import UserError
from bench.factors import DATASET_NAMES
from bench.homes import cache_folder, expanded

KINDS = ("cifar10", "cifar100", "toy")

_AUTO_TIMEOUT_SECONDS = 8.0
_EXPLICIT_TIMEOUT_SECONDS = 30.0


def prepare(
    dataset: str,
    *,
    kind: str,
    data_root: Path | None,
    seed: int,
    download_limit_seconds: float = 60,
    progress: Progress | None = None,
    report: Report | None = None,
    specs: Mapping[str, DatasetSpec] = DATASETS,
) -> PreparedData:
    """Find, fetch or generate a dataset, verify it, and convert it once to .npy files.

    `kind` is what the workload wants: `cifar10`, `cifar100` or `toy`. `auto` is the real dataset of that kind where it
    is found or downloaded within `download_limit_seconds` (0: never downloaded), else synthetic data of the same
    shapes with a notice; toy data are always synthetic. A dataset named outright is downloaded without a limit, as
    long as bytes keep coming. `data_root` is by default the user's cache folder. `seed` is that of
    synthetic data. `progress` follows a download; `report` gets a line where there is something to wait for.

    Raises UserError when the dataset does not fit the kind, cannot be had, is damaged (naming the file), or when
    there is no folder to write to.
    """
    _check(dataset, kind, seed)
    root, roots = _roots(data_root)
    if kind == "toy" or dataset == "synthetic":
        return _prepare_synthetic(specs, roots, kind=kind, seed=seed, report=report)
    spec = specs[kind]
    limit = download_limit_seconds if dataset == "auto" else None
    try:
        return _prepare_real(spec, root, roots, limit_seconds=limit, progress=progress, report=report)
    except DownloadFailed as failure:
        if dataset != "auto":
            raise UserError(
                f"{spec.title} is not in {root} and could not be downloaded from {spec.url}: {failure};\n"
                f"put {spec.archive} into {root} by hand, or take --dataset synthetic"
            ) from None
        notice = f"Synthetic images in place of {spec.title}, which was neither found nor downloaded: {failure}."
    made = _prepare_synthetic(specs, roots, kind=kind, seed=seed, report=report)
    return dataclasses.replace(made, notice=notice)


def _check(dataset: str, kind: str, seed: int) -> None:
    if dataset not in DATASET_NAMES:
        raise UserError(f"unknown dataset {dataset!r}; known: {', '.join(DATASET_NAMES)}")
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if dataset not in ("auto", "synthetic", kind):
        fitting = "auto or synthetic" if kind == "toy" else f"auto, {kind} or synthetic"
        raise UserError(
            f"dataset {dataset} does not fit this workload, which takes {fitting}", keys=("dataset", "workload")
        )
    if seed < 0:
        raise UserError(f"seed {seed} is negative; give 0 or more")


def _roots(data_root: Path | None) -> tuple[Path, list[Path]]:
    """The root to look in, and the roots that converted data may go to, best first."""
    root = cache_folder() if data_root is None else expanded(data_root).absolute()
    try:
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is a file; as data root give a folder")
    except OSError as error:
        raise UserError(f"data root {str(root)[:80]}: {error.strerror or error}; give another folder") from None
    try:
        cache = cache_folder()
    except UserError:
        return root, [root]
    return root, [root] if root == cache else [root, cache]


def _prepare_real(
    spec: DatasetSpec,
    root: Path,
    roots: Sequence[Path],
    *,
    limit_seconds: float | None,
    progress: Progress | None,
    report: Report | None,
) -> PreparedData:
    """Raises DownloadFailed when the dataset is not there and cannot be had, UserError when it is damaged."""
    stored = None
    # Without the lock first: campaigns whose data are ready never wait for one another.
    if files := cifar.locate(spec, root):
        stored = converted.find_converted(roots, spec.name, _source_recipe(spec, files), report=report)
    if stored is None:
        with converted.locked(roots, report=report) as writable:
            files = cifar.locate(spec, root) or _fetch(
                spec, root, writable=writable == root, limit_seconds=limit_seconds, progress=progress
            )
            recipe = _source_recipe(spec, files)
            # Another process may have converted them while this one waited.
            stored = converted.find_converted(roots, spec.name, recipe)
            if stored is None:
                arrays, warnings = cifar.read(spec, files)
                stored = converted.save_converted(writable, spec.name, recipe, arrays, warnings=warnings)
    return _prepared(stored, name=spec.name, synthetic=False)


def _fetch(
    spec: DatasetSpec, root: Path, *, writable: bool, limit_seconds: float | None, progress: Progress | None
) -> tuple[Path, ...]:
    """Download the archive into `root` and return it as the one file to read."""
    if not writable:
        raise DownloadFailed("the data folder cannot be written to")
    archive = root / spec.archive
    timeout = _EXPLICIT_TIMEOUT_SECONDS if limit_seconds is None else _AUTO_TIMEOUT_SECONDS
    download(
        spec.url,
        archive,
        md5=spec.archive_md5,
        timeout_seconds=timeout,
        limit_seconds=limit_seconds,
        progress=progress,
    )
    return (archive,)


def _source_recipe(spec: DatasetSpec, files: Sequence[Path]) -> converted.Recipe:
    """Names, sizes and times of the files read: when they are the same, so is what was converted from them."""
    sources = {}
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise UserError(f"could not read {path}: {error.strerror or error}") from None
        sources[str(path.resolve())] = [status.st_size, status.st_mtime_ns]
    return {"sources": sources, "counts": [spec.train_count, spec.test_count], "classes": spec.classes}


def _prepare_synthetic(
    specs: Mapping[str, DatasetSpec], roots: Sequence[Path], *, kind: str, seed: int, report: Report | None
) -> PreparedData:
    recipe: converted.Recipe = {"kind": kind, "seed": seed, "version": synthetic.RECIPE_VERSION}
    if kind != "toy":
        spec = specs[kind]
        recipe |= {"counts": [spec.train_count, spec.test_count], "classes": spec.classes}
    label = f"synthetic-{kind}"
    stored = converted.find_converted(roots, label, recipe, report=report)
    if stored is None:
        with converted.locked(roots, report=report) as writable:
            stored = converted.find_converted(roots, label, recipe)
            if stored is None:
                stored = converted.save_converted(writable, label, recipe, _generate(specs, kind=kind, seed=seed))
    return _prepared(stored, name="synthetic", synthetic=True)


def _generate(specs: Mapping[str, DatasetSpec], *, kind: str, seed: int) -> Arrays:
    if kind == "toy":
        return synthetic.vectors(seed=seed)
    spec = specs[kind]
    return synthetic.images(seed=seed, classes=spec.classes, train_count=spec.train_count, test_count=spec.test_count)


def _prepared(stored: converted.Stored, *, name: str, synthetic: bool) -> PreparedData:
    return PreparedData(
        name=name,
        train_inputs=stored.path("train_inputs"),
        train_targets=stored.path("train_targets"),
        test_inputs=stored.path("test_inputs"),
        test_targets=stored.path("test_targets"),
        train_count=stored.counts["train_inputs"],
        test_count=stored.counts["test_inputs"],
        fingerprint=stored.fingerprint,
        synthetic=synthetic,
        warnings=stored.warnings,
    )
