"""One rank's place: its devices, its threads, its process groups, and the collectives that the harness itself needs."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from bench.wire import RunSpec
from strategies.places import Place

RESOLVE_SECONDS = 5.0


@dataclass
class Rank:
    """This process among the others.

    The default process group is the strategy's. Collectives of the harness run on a group of its own, on CPU tensors,
    over gloo, outside timed steps, so that what a strategy does or counts on its group is not mixed with them.
    """

    spec: RunSpec
    rank: int
    world_size: int
    devices: tuple[torch.device, ...]
    own_group: dist.ProcessGroup | None = None

    @classmethod
    def from_environment(cls, spec: RunSpec) -> Rank:
        """Read RANK, LOCAL_RANK and WORLD_SIZE, take this process's devices and set its threads."""
        rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        own = spec.cell.places[rank].devices
        if spec.device_kind == "cpu":
            devices = (torch.device("cpu"),) * own
        else:
            # Those of the ranks before it on this machine come first.
            first = sum(place.devices for place in spec.cell.places[rank - local : rank])
            devices = tuple(torch.device("cuda", first + index) for index in range(own))
            torch.cuda.set_device(devices[0])
        # The stages of a split replica take turns, so even a process of two devices works with one device's share.
        torch.set_num_threads(spec.threads_per_device)
        return cls(spec, rank, int(os.environ["WORLD_SIZE"]), devices)

    @property
    def place(self) -> Place:
        return self.spec.cell.places[self.rank]

    def start_group(self) -> None:
        """Join the run's process group, where it has one, and make the harness's own."""
        if not self.spec.backend:
            return
        timeout = timedelta(seconds=self.spec.timeout_seconds)
        common: dict[str, Any] = {"backend": self.spec.backend, "timeout": timeout}
        # A group bound to one device refuses tensors of a second one, which a split replica has.
        if self.devices[0].type == "cuda" and len(self.devices) == 1:
            common["device_id"] = self.devices[0]
        if self.spec.rendezvous == "env://":
            _check_master(os.environ.get("MASTER_ADDR", ""))
            dist.init_process_group(init_method="env://", **common)
        else:
            store = dist.FileStore(self.spec.rendezvous, self.world_size)  # type: ignore[attr-defined]
            dist.init_process_group(store=store, rank=self.rank, world_size=self.world_size, **common)
        self.own_group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
        self.barrier()

    def stop_group(self) -> None:
        """Leave the groups after everyone is done with them: destroying them earlier aborts peers."""
        if self.own_group is not None:
            self.barrier()
            dist.destroy_process_group(self.own_group)
            dist.destroy_process_group()
            self.own_group = None

    def barrier(self) -> None:
        """Return when every rank has come here. A CPU all-reduce: no device stream takes part."""
        if self.own_group is not None:
            dist.all_reduce(torch.zeros(1), group=self.own_group)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        if self.own_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.own_group)
        return values

    def synchronize(self) -> None:
        """Wait for all work on this process's devices."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def _check_master(host: str) -> None:
    """Raise ConnectionError where another launcher's MASTER_ADDR does not resolve.

    torch would try it until the run's deadline without a word. A few seconds are given, since the names of a cluster
    may come up after its processes; what else may be wrong (no address, a taken port) torch says at once.
    """
    end = time.monotonic() + RESOLVE_SECONDS
    while host:
        try:
            socket.getaddrinfo(host, None)
            return
        except socket.gaierror as error:
            if time.monotonic() >= end:
                raise ConnectionError(f"MASTER_ADDR={host}: no address is known for this host ({error})") from None
        time.sleep(0.5)
