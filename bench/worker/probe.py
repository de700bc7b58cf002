"""How fast this machine is at this moment: fixed arithmetic and fixed memory traffic, the same in every campaign.

Two days on one cloud machine can differ by a factor of 2 in the speed of equal code. The baseline's runs therefore
measure, between warm-up and their first timed step, what no version of a strategy changes: products of two fixed
matrices, and copies of a block larger than caches. `bench compare` reads there whether the machine itself moved.

The two take turns, so that both medians cover the whole of a fraction of a second. Random numbers are not touched, and
its memory is in no column: peaks on a GPU begin with each timed epoch, and on a CPU the block is a mapping of its own,
which the allocator of the timed steps does not notice and the run's account leaves out.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.worker.account import by_product, peak_rss_bytes
from bench.worker.rank import Rank
from bench.worker.state import ProbeRates, RunState

NANOSECONDS = 1e-9
Clock = Callable[[], int]
Work = Callable[[], object]


@dataclass(frozen=True)
class Load:
    """The fixed work of one repetition, by kind of device.

    `products` of two matrices of `size` x `size` values of `type`; `copies` of `block_bytes` to a second such block.
    The matrices lie in the blocks, so that the whole takes 2 * block_bytes. One product is too short on a GPU to be
    timed, and float16 does not depend on whether the run allows TF32.
    """

    size: int
    type: torch.dtype
    products: int
    block_bytes: int
    copies: int
    repeats: int = 15

    @property
    def flops(self) -> int:
        """Operations of the products, multiply and add apart."""
        return self.products * 2 * self.size**3

    @property
    def traffic_bytes(self) -> int:
        """Bytes that the copies read and write."""
        return self.copies * 2 * self.block_bytes


LOADS = {
    "cpu": Load(size=512, type=torch.float32, products=1, block_bytes=32 << 20, copies=1),
    "cuda": Load(size=4096, type=torch.float16, products=4, block_bytes=128 << 20, copies=8),
}


def probe(run: RunState) -> None:
    """Measure on rank 0 where the run was asked to, into `run.probes`; a failure is a line of `run.problems`."""
    if not run.spec.probe or run.rank.rank != 0:
        return
    run.probe_rss.append(peak_rss_bytes())
    rates = by_product("probe of the machine's speed", lambda: _measure(run.rank), run.problems)
    run.probe_rss.append(peak_rss_bytes())
    run.probes.extend([rates] if rates else [])


def _measure(rank: Rank) -> ProbeRates:
    device = rank.devices[0]
    load = LOADS[device.type]
    if device.type != "cuda":
        return measure(load, _mapped(2 * load.block_bytes), rank.synchronize)
    free, before = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_allocated(device)
    if free < 2 * load.block_bytes:
        # The allocator would give back all that it keeps for the timed steps, and ask for it again within them.
        raise MemoryError(f"{free} bytes of {device} are free, it takes {2 * load.block_bytes}")
    rates = measure(load, torch.empty(2 * load.block_bytes, dtype=torch.uint8, device=device), rank.synchronize)
    left = torch.cuda.memory_allocated(device) - before
    if left:
        raise MemoryError(f"it left {left} bytes allocated on {device}")
    return rates


def _mapped(size: int) -> Tensor:
    """`size` bytes in a mapping of their own, which goes when the last tensor on it does."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


@torch.no_grad()
def measure(
    load: Load, memory: Tensor, synchronize: Callable[[], None], *, clock: Clock = time.perf_counter_ns
) -> ProbeRates:
    """The rates of one device. memory: (2 * load.block_bytes,) uint8, on it; its content is lost."""
    source, target = memory.split(load.block_bytes)
    values = load.size**2
    # Ordinary numbers, the same each time: zeros would take a GPU less power, and so less time.
    pattern = torch.arange(251, device=memory.device).sub_(125).div(128).to(load.type)
    numbers = source.view(load.type)
    whole = numbers.numel() // len(pattern) * len(pattern)
    numbers.zero_()[:whole].view(-1, len(pattern)).copy_(pattern)
    first, second = (numbers[n * values :][:values].view(load.size, load.size) for n in range(2))
    product = target.view(load.type)[:values].view(load.size, load.size)

    def arithmetic() -> None:
        for _ in range(load.products):
            torch.mm(first, second, out=product)

    def traffic() -> None:
        for _ in range(load.copies):
            target.copy_(source)

    seconds = _interleaved((arithmetic, traffic), load.repeats, synchronize, clock)
    return ProbeRates(load.flops / seconds[0], load.traffic_bytes / seconds[1])


def _interleaved(works: tuple[Work, ...], repeats: int, synchronize: Callable[[], None], clock: Clock) -> list[float]:
    """Median seconds of each work, done in turns, after a first turn that is not counted."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 1):
        for work, own in zip(works, times, strict=True):
            synchronize()
            begin = clock()
            work()
            synchronize()
            own.append((clock() - begin) * NANOSECONDS)
    return [statistics.median(own[1:]) for own in times]
