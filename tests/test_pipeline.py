"""The resident pipeline: which samples each part sees in which order, and that pixels are torchvision's."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.functional import hflip, normalize, to_tensor

from bench import workloads
from bench.worker.batches import Samples, TrainingBatches, epoch_order, evaluation_batches

COUNT = 101
BATCH = 12


class Numbers:
    """A workload whose input shows which sample it is, and with a minus that it was mirrored."""

    augments = True

    def to_input(self, stored, flip):
        return stored if flip is None else torch.where(flip.view(-1, 1), -stored, stored)


class Unflipped(Numbers):
    augments = False


def numbered(count=COUNT):
    return Samples(torch.arange(1, count + 1).view(-1, 1), torch.arange(count))


def batches(part=0, parts=1, *, seed=0, workload=None):
    return TrainingBatches(numbered(), workload or Numbers(), BATCH, part, parts, seed)


def seen(epoch=1, *, parts=1, steps=None, seed=0):
    """By step, the inputs and targets of all parts one after another."""
    sources = [batches(part, parts, seed=seed) for part in range(parts)]
    steps = sources[0].steps_per_epoch if steps is None else steps
    found = []
    for step in zip(*(source.epoch(epoch, steps=steps) for source in sources), strict=True):
        assert [len(inputs) for inputs, _ in step] == [BATCH // parts] * parts
        found.append((torch.cat([inputs for inputs, _ in step]), torch.cat([targets for _, targets in step])))
    return found


def targets_of(steps):
    return torch.cat([targets for _, targets in steps]).tolist()


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_epochs_order_is_a_permutation_and_half_is_mirrored(epoch):
    order, mirror = epoch_order(10_000, seed=3, epoch=epoch)
    assert sorted(order.tolist()) == list(range(10_000))
    # Four standard deviations of a fair coin thrown 10,000 times.
    assert abs(int(mirror.sum()) - 5000) < 200


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_every_sample_is_seen_exactly_once_with_those_dropped(parts):
    used = targets_of(seen(parts=parts))
    dropped = epoch_order(COUNT, seed=0, epoch=1)[0][len(used) :].tolist()
    assert len(dropped) == COUNT % BATCH
    assert sorted(used + dropped) == list(range(COUNT))


def test_the_next_epoch_and_another_seed_have_another_order():
    first = targets_of(seen(1))
    assert targets_of(seen(2)) != first
    assert targets_of(seen(1, seed=1)) != first
    assert targets_of(seen(1)) == first


def test_neighbouring_seeds_do_not_share_an_epoch():
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch)[0].tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize("parts", [2, 3, 4, 6])
def test_the_parts_of_a_step_are_the_single_devices_batch_in_its_order_and_mirrored_alike(parts):
    whole, cut = seen(), seen(parts=parts)
    assert len(cut) == len(whole) == COUNT // BATCH
    for (inputs, targets), (own_inputs, own_targets) in zip(whole, cut, strict=True):
        assert torch.equal(own_inputs, inputs)
        assert torch.equal(own_targets, targets)
    assert any((inputs < 0).any() for inputs, _ in whole)
    assert any((inputs > 0).any() for inputs, _ in whole)


def test_fewer_steps_are_the_beginning_of_the_epoch():
    assert targets_of(seen(steps=2)) == targets_of(seen())[: 2 * BATCH]
    assert seen(steps=0) == []


def test_inputs_and_targets_stay_together():
    for inputs, targets in seen():
        assert torch.equal(inputs.abs().view(-1), targets + 1)


def test_a_workload_that_does_not_augment_is_never_mirrored():
    assert all((inputs > 0).all() for inputs, _ in batches(workload=Unflipped()).epoch(1, steps=8))


# -- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 5, 50, 101])
def test_evaluation_takes_every_test_sample_exactly_once_over_all_parts(parts, count):
    found = []
    for part in range(parts):
        for inputs, targets in evaluation_batches(numbered(count), Numbers(), batch=10, part=part, parts=parts):
            assert 1 <= len(inputs) <= 10
            assert (inputs > 0).all()
            found += targets.tolist()
    assert sorted(found) == list(range(count))


def test_evaluation_shares_differ_by_one_sample_at_most():
    def share(part):
        taken = evaluation_batches(numbered(101), Numbers(), batch=10, part=part, parts=7)
        return sum(len(targets) for _, targets in taken)

    sizes = [share(part) for part in range(7)]
    assert max(sizes) - min(sizes) <= 1


# -- pixels -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def images():
    """(batch, 3, height, width) uint8 with both ends of the range."""
    made = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    made[0, :, 0, 0], made[0, :, 0, 1] = 0, 255
    return torch.from_numpy(made)


def torchvision_input(image, *, flip):
    """The same image by torchvision's own transforms from the (height, width, 3) array that its datasets hold."""
    tensor = normalize(to_tensor(image.permute(1, 2, 0).numpy()), [0.5] * 3, [0.5] * 3)
    return hflip(tensor) if flip else tensor


@pytest.mark.parametrize("flip", [None, [True] * 6, [True, False, False, True, True, False]])
def test_pixels_and_mirroring_are_torchvisions(images, flip):
    marks = None if flip is None else torch.tensor(flip)
    found = workloads.load("resnet50-cifar10").to_input(images, marks)
    expected = torch.stack([torchvision_input(image, flip=f) for image, f in zip(images, flip or [0] * 6, strict=True)])
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    assert (found.min(), found.max()) == (-1.0, 1.0)


def test_pixels_are_those_of_the_second_version_of_the_transforms(images):
    transform = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    assert torch.allclose(workloads.load("cnn-cifar100").to_input(images, None), transform(images), rtol=0, atol=1e-6)


def test_stored_images_are_not_changed_by_reading_them(images):
    before = images.clone()
    workloads.load("resnet50-cifar10").to_input(images, torch.ones(6, dtype=torch.bool))
    assert torch.equal(images, before)


def test_vectors_of_the_toy_workload_are_as_stored():
    stored = torch.randn(4, 10)
    assert workloads.load("toy").to_input(stored, None) is stored


def test_samples_are_mapped_from_their_files(tmp_path, images):
    np.save(tmp_path / "x.npy", images.numpy())
    np.save(tmp_path / "y.npy", np.arange(6))
    samples = Samples.load(tmp_path / "x.npy", tmp_path / "y.npy", torch.device("cpu"))
    assert len(samples) == 6
    assert torch.equal(samples.inputs, images)
    # Copy on write: nothing that a rank does reaches the file that all ranks share.
    samples.inputs[0] = 0
    assert np.array_equal(np.load(tmp_path / "x.npy"), images.numpy())
