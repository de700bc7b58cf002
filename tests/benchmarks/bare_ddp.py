"""One rank of DistributedDataParallel as a person would write it: the opponent of the suite's `ddp`.

bare_ddp.py INPUTS.npy TARGETS.npy STORE BATCH STEPS OUT      # with RANK and WORLD_SIZE set
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.worker.batches import epoch_order
from bench.workloads import load


def main() -> None:
    inputs_file, targets_file, store, batch, steps, out = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    inputs = torch.from_numpy(np.load(inputs_file, mmap_mode="c"))
    targets = torch.from_numpy(np.load(targets_file, mmap_mode="c"))
    torch.manual_seed(0)
    model = DistributedDataParallel(load("resnet50-cifar10").make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    mine = int(batch) // world

    def train(epoch: int, count: int) -> float:
        order, mirror = epoch_order(len(inputs), seed=0, epoch=epoch)
        dist.barrier()
        begin = time.perf_counter()
        for step in range(count):
            first = step * int(batch) + rank * mine
            chosen, flip = order[first : first + mine], mirror[first : first + mine].view(-1, 1, 1, 1)
            images = inputs[chosen]
            images = torch.where(flip, images.flip(-1), images).float().mul_(2 / 255).sub_(1)
            criterion(model(images), targets[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - begin

    train(0, 1)
    seconds = train(1, int(steps))
    Path(f"{out}.{rank}").write_text(repr(seconds), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
