"""What two real gloo ranks give for every strategy: losses, gradients, parameters, buffers, collectives.

Started once by the tests of the truths; each rank runs every strategy on the same data and writes what it saw.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from bench.worker.batches import split
from strategies import Registry
from strategies.base import Context, Plan, Strategy, Unsupported
from strategies.places import Asked

GLOBAL_BATCH = 16
STEPS = 3
SHAPE = (3, 8, 8)


def plain_model() -> nn.Module:
    """Without BatchNorm: data parallelism must change nothing but rounding."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(1),
        nn.Linear(32, 5),
    )


def normed_model() -> nn.Module:
    """With BatchNorm: only synchronised statistics equal those of one device at the global batch."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(1),
        nn.Linear(32, 5),
    )


def frozen_model() -> nn.Module:
    """The model with BatchNorm, its convolution not trained."""
    model = normed_model()
    model[0].requires_grad_(False)
    return model


MODELS = {"plain": plain_model, "normed": normed_model}


def data() -> tuple[Tensor, Tensor]:
    """inputs (STEPS, GLOBAL_BATCH, 3, 8, 8), their mean differing from half to half; targets (STEPS, GLOBAL_BATCH)."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(STEPS, GLOBAL_BATCH, *SHAPE, generator=generator)
    inputs[:, GLOBAL_BATCH // 2 :] += 1.0
    return inputs, torch.randint(0, 5, (STEPS, GLOBAL_BATCH), generator=generator)


def plan_for(strategy: Strategy, processes: int) -> tuple[int, Plan] | None:
    """The fewest CPU devices at which a strategy starts that many processes, with its plan."""
    for devices in (1, 2, 4):
        try:
            plan = strategy.plan(Asked(devices, "cpu", strategy.default_options))
        except Unsupported:
            continue
        if plan.processes == processes:
            return devices, plan
    return None


def runs_at(name: str, precision: str) -> bool:
    """Whether a strategy runs at a precision: one that names none runs at all."""
    precisions = Registry.collect().load(name).precisions
    return not precisions or precision in precisions


def make_optimizer(parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=fused or None)


def built(
    name: str,
    plan: Plan,
    rank: int,
    *,
    model: str,
    precision: str,
    options: dict[str, Any] | None = None,
    accumulate: int = 1,
    make_model: Callable[[], nn.Module] | None = None,
) -> Strategy:
    """A strategy with one of MODELS, or another one."""
    strategy = Registry.collect().load(name)()
    context = Context(
        rank=rank,
        plan=plan,
        devices=(torch.device("cpu"),) * plan.places[rank].devices,
        loss=nn.functional.cross_entropy,
        input_shape=SHAPE,
        precision=precision,
        memory_format=strategy.default_memory_format,
        accumulate=accumulate,
        options=options or {},
    )
    strategy.build(context, make_model or MODELS[model], make_optimizer)
    strategy.model.train()
    return strategy


def part_of(plan: Plan, rank: int) -> slice:
    """The samples of a global batch that this rank reads."""
    part = plan.places[rank].part
    assert part is not None
    return slice(part * GLOBAL_BATCH // plan.read_parts, (part + 1) * GLOBAL_BATCH // plan.read_parts)


def train(strategy: Strategy, plan: Plan, rank: int, *, accumulate: int = 1) -> dict[str, Any]:
    """Three steps on this rank's part; the first step's gradients before they are applied."""
    inputs, targets = data()
    mine = part_of(plan, rank)
    losses, gradients = [], {}
    for step in range(STEPS):
        parts = split((inputs[step, mine], targets[step, mine]), accumulate)
        loss = strategy.forward_backward([strategy.place(*part) for part in parts])
        losses.append(None if loss is None else float(loss))
        if step == 0:
            gradients = {n: p.grad.detach().clone() for n, p in strategy.model.named_parameters() if p.grad is not None}
        strategy.apply()
    return {
        "losses": losses,
        "gradients": gradients,
        "hash": strategy.fingerprint(),
        "buffers": {name: value.clone() for name, value in strategy.model.named_buffers()},
        "state": copy.deepcopy(strategy.bare_state()),
        "zeroed": all(p.grad is None for p in strategy.model.parameters()),
    }


def step(strategy: Strategy, plan: Plan, rank: int, *, accumulate: int) -> None:
    """One optimizer step on this rank's part of the first global batch."""
    inputs, targets = data()
    mine = part_of(plan, rank)
    parts = split((inputs[0, mine], targets[0, mine]), accumulate)
    strategy.forward_backward([strategy.place(*part) for part in parts])
    strategy.apply()


def count_collectives(strategy: Strategy, plan: Plan, rank: int, *, accumulate: int) -> int:
    """all-reduces that gloo ran in one optimizer step, from torch's own profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step(strategy, plan, rank, accumulate=accumulate)
    return sum(event.count for event in recorded.key_averages() if event.key == "gloo:all_reduce")


BYTES = {"float": 4, "int": 4, "long int": 8}


def count_bytes(strategy: Strategy, plan: Plan, rank: int, *, accumulate: int) -> dict[str, int]:
    """Bytes that this rank gave to gloo's collectives in one optimizer step, by kind, from torch's own profiler.

    The third step is counted: DistributedDataParallel orders its buckets anew after the first.
    """
    for _ in range(2):
        step(strategy, plan, rank, accumulate=accumulate)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step(strategy, plan, rank, accumulate=accumulate)
    found: Counter[str] = Counter()
    for event in recorded.events():
        kind, _, name = event.name.partition(":")
        if kind == "gloo":
            sizes = zip(event.input_shapes, event.input_dtypes, strict=True)
            found[name] += sum(math.prod(shape) * BYTES[dtype] for shape, dtype in sizes if dtype)
    return dict(found)


TRAFFIC = {
    "normed": {"model": "normed"},
    "plain": {"model": "plain"},
    "accumulated": {"model": "normed", "accumulate": 2},
    "unused": {"model": "normed", "options": {"find_unused_parameters": True}},
    "kept buffers": {"model": "normed", "options": {"broadcast_buffers": False}},
    "frozen": {"model": "normed", "make_model": frozen_model},
}
"""Ways to build a strategy, by name, in which what it says of its traffic is held against what gloo did."""


def traffic(name: str, plan: Plan, rank: int, precision: str) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """What a strategy says of its traffic and what was counted, by the names in TRAFFIC."""
    found = {}
    for case, changes in TRAFFIC.items():
        strategy = built(name, plan, rank, precision=precision, **changes)
        said = dict(strategy.traffic())
        found[case] = said, count_bytes(strategy, plan, rank, accumulate=changes.get("accumulate", 1))
        strategy.close()
    return found


def all_of(name: str, plan: Plan, rank: int) -> dict[str, Any]:
    """Everything the tests ask of one strategy."""
    results: dict[str, Any] = {"plan": plan}
    for precision in ("fp32", "amp-bf16"):
        if runs_at(name, precision):
            for model in MODELS:
                strategy = built(name, plan, rank, model=model, precision=precision)
                results[model, precision] = train(strategy, plan, rank)
                strategy.close()
    usual = "fp32" if runs_at(name, "fp32") else "amp-bf16"
    strategy = built(name, plan, rank, model="plain", precision=usual)
    results["accumulated"] = train(strategy, plan, rank, accumulate=2)
    strategy.close()
    if plan.processes > 1:
        strategy = built(name, plan, rank, model="plain", precision=usual)
        results["collectives"] = {k: count_collectives(strategy, plan, rank, accumulate=k) for k in (1, 2, 4)}
        strategy.close()
        results["traffic"] = traffic(name, plan, rank, usual)
    return results


def rank_main(rank: int, processes: int, names: list[str], folder: str) -> None:
    """One rank: every strategy in turn, results in FOLDER/rank<r>.pt."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    results = {}
    for name in names:
        found = plan_for(Registry.collect().load(name)(), processes)
        if found:
            results[name] = all_of(name, found[1], rank)
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
