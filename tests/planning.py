"""Cells of made-up machines, planned without any process."""

from bench import workloads
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu
from bench.plan.cells import plan_cells
from bench.plan.checks import check_cells
from bench.plan.matrix import Group, Matrix
from strategies import BUILT_IN, Registry

SIX = ("single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp")
REGISTRY = Registry({entry.name: entry for entry in BUILT_IN})
CPU = Machine("cpu", "A Processor", 8, 8)
GPUS = tuple(Gpu(index, f"GPU-{index}", "NVIDIA A100-SXM4-40GB", 40 << 30, "600.1", (8, 0)) for index in range(4))
CUDA = Machine("cuda", "NVIDIA A100-SXM4-40GB", 4, 32, GPUS)
CIFAR_TRAIN_COUNT = 50_000


def plan(matrix, *, machine=CPU, train_count=CIFAR_TRAIN_COUNT, registry=REGISTRY):
    workload = workloads.find(matrix.workload)
    found = plan_cells(matrix, machine=machine, registry=registry, workload=workload)
    check_cells(found, matrix, workload=workload, train_count=train_count)
    return found


def cells(*strategies, devices=(1, 2), machine=CPU, workload="resnet50-cifar10", steps=1, control=False, **group):
    top = {name: group.pop(name) for name in ("options", "breakdown", "baseline", "warmup_steps") if name in group}
    groups = (Group(strategies=strategies, devices=tuple(devices), **group),)
    return plan(Matrix("m", groups, workload=workload, steps=steps, control=control, **top), machine=machine)


def one(strategy, devices, **group):
    (cell,) = cells(strategy, devices=(devices,), **group)
    return cell
