"""Data made from a seed: images of the real datasets' shapes, and the vectors of the toy workload."""

import numpy as np

from bench.data.specs import IMAGE_SHAPE, Arrays

RECIPE_VERSION = 1
"""Raise it with every change of what is generated, so that files made before are not taken for the new ones."""

TOY_INPUTS = 10
TOY_TARGETS = 5
TOY_TRAIN_COUNT = 4096
TOY_TEST_COUNT = 512

_GRID = 4
_PATTERN_LOW, _PATTERN_HIGH = 32, 191
_NOISE_LEVELS = 64
_CHUNK_ROWS = 10_000


def images(*, seed: int, classes: int, train_count: int, test_count: int) -> Arrays:
    """Class-dependent images: inputs (n, 3, 32, 32) uint8, targets (n,) int64 with classes as equal as n allows.

    Each class is one smooth random pattern in 32..191, to which every pixel of every image adds noise in 0..63.
    Train and test images share the patterns. All of it is integer arithmetic: a seed gives the same bytes on every
    machine.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    patterns = _patterns(generator, classes)
    train_targets = generator.permutation(np.arange(train_count, dtype=np.int64) % classes)
    test_targets = generator.permutation(np.arange(test_count, dtype=np.int64) % classes)
    return Arrays(
        train_inputs=_noisy(generator, patterns, train_targets),
        train_targets=train_targets,
        test_inputs=_noisy(generator, patterns, test_targets),
        test_targets=test_targets,
    )


def vectors(*, seed: int) -> Arrays:
    """Regression for the toy workload: inputs (n, 10) and targets (n, 5), float32; 4096 train and 512 test rows.

    Targets are a fixed random linear map of the inputs with a tenth of noise.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = generator.standard_normal((TOY_INPUTS, TOY_TARGETS)) / np.sqrt(TOY_INPUTS)
    inputs = generator.standard_normal((TOY_TRAIN_COUNT + TOY_TEST_COUNT, TOY_INPUTS))
    noise = generator.standard_normal((len(inputs), TOY_TARGETS))
    targets = (inputs @ weights + 0.1 * noise).astype(np.float32)
    inputs = inputs.astype(np.float32)
    return Arrays(
        train_inputs=inputs[:TOY_TRAIN_COUNT],
        train_targets=targets[:TOY_TRAIN_COUNT],
        test_inputs=inputs[TOY_TRAIN_COUNT:],
        test_targets=targets[TOY_TRAIN_COUNT:],
    )


def _patterns(generator: np.random.Generator, classes: int) -> np.ndarray:
    """One pattern a class, (classes, 3, 32, 32) uint8: a random 4 x 4 grid, interpolated linearly to 32 x 32."""
    channels, size, _ = IMAGE_SHAPE
    grid = generator.integers(_PATTERN_LOW, _PATTERN_HIGH, (classes, channels, _GRID, _GRID), endpoint=True)
    steps = size - 1
    position = np.arange(size) * (_GRID - 1)
    left = np.minimum(position // steps, _GRID - 2)
    share = position - left * steps
    weights = np.zeros((size, _GRID), dtype=np.int64)
    weights[np.arange(size), left] = steps - share
    weights[np.arange(size), left + 1] = share
    patterns: np.ndarray = (weights @ grid @ weights.T) // steps**2
    return patterns.astype(np.uint8)


def _noisy(generator: np.random.Generator, patterns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The pattern of each target plus noise, (n, 3, 32, 32) uint8, in chunks to bound the memory in use."""
    inputs = np.empty((len(targets), *IMAGE_SHAPE), dtype=np.uint8)
    for start in range(0, len(targets), _CHUNK_ROWS):
        chunk = inputs[start : start + _CHUNK_ROWS]
        np.take(patterns, targets[start : start + _CHUNK_ROWS], axis=0, out=chunk, mode="clip")
        chunk += generator.integers(0, _NOISE_LEVELS, chunk.shape, dtype=np.uint8)
    return inputs
