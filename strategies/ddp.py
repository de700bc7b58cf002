"""DistributedDataParallel and its relatives: one process a device, gradients averaged while backward runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from strategies.base import Strategy, Unsupported
from strategies.layers import batch_norm_layers, replace_batch_norm
from strategies.places import Asked, Plan, data_parallel
from strategies.state import bytes_of, trainable
from strategies.sync_batch_norm import SyncBatchNorm

DDP_OPTIONS: Mapping[str, Any] = {
    "bucket_cap_mb": 25,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "find_unused_parameters": False,
    "broadcast_buffers": True,
}
"""The knobs of DistributedDataParallel with torch's own defaults (bucket size in MiB)."""

MOST_NAMES = 3
"""Parameters without a gradient that a message names."""


class DDP(Strategy):
    """One process a device. On CPU the wrapper takes no device ids."""

    default_options = DDP_OPTIONS
    uses_process_group = True
    wrapper: DistributedDataParallel
    _looked = False

    def plan(self, asked: Asked) -> Plan:
        return data_parallel(asked.devices)

    def wrap(self, model: nn.Module) -> nn.Module:
        self.wrapper = DistributedDataParallel(model, device_ids=self.device_ids(), **self.changed_options())
        return self.wrapper

    def changed_options(self) -> dict[str, Any]:
        """Only what differs from torch's defaults: naming a default can warn, where its name is going to change."""
        return {name: self.option(name) for name in DDP_OPTIONS if self.option(name) != DDP_OPTIONS[name]}

    def device_ids(self) -> list[int] | None:
        """The one GPU of this process; None on CPU, and where a replica spans devices."""
        device = self.context.devices[0]
        return None if device.type == "cpu" or device.index is None else [device.index]

    def sync(self, on: bool) -> AbstractContextManager[Any]:
        if on:
            return nullcontext() if self._looked else self._looking()
        if self.option("static_graph"):
            raise Unsupported("static_graph exchanges in every micro-batch: torch's reducer asserts under no_sync")
        return self.wrapper.no_sync()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """The first region of a backward that exchanges, and a look at what it has left out.

        torch says so in the forward pass of the second step. That never comes in a run of one step, whose gradients
        were not exchanged; and where a parameter takes part on some ranks only, they wait for the others before that.
        Raises RuntimeError with the names.
        """
        yield
        self._looked = True
        wrapper = self.wrapper
        if wrapper.find_unused_parameters or wrapper.static_graph:
            return
        due = {name: one for name, one in wrapper.module.named_parameters() if one.requires_grad}
        missing = [name for name in due if due[name].grad is None and name not in wrapper.parameters_to_ignore]
        if missing:
            told = ", ".join(missing[:MOST_NAMES]) + (", ..." if len(missing) > MOST_NAMES else "")
            raise RuntimeError(
                f"{len(missing)} of {len(due)} parameters had no gradient in the first step on rank "
                f"{self.context.rank} ({told}); DistributedDataParallel exchanges none of a bucket before it has all, "
                "unless find_unused_parameters is true"
            )

    def share_buffers(self) -> None:
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=0)

    def traffic(self) -> Mapping[str, int]:
        """The gradients, once a step whatever is accumulated, and the buffers before the first micro-batch.

        Looking for unused parameters exchanges one int32 for each parameter tensor. A subclass that exchanges something
        else, such as compressed gradients, says so itself.
        """
        if self.context.world_size == 1:
            return {}
        parameters = trainable(self.model)
        found = {"all_reduce": bytes_of(parameters)}
        if self.option("find_unused_parameters") and not self.option("static_graph"):
            found["all_reduce"] += 4 * len(parameters)
        buffers = bytes_of(self.model.buffers())
        return {**found, "broadcast": buffers} if self.option("broadcast_buffers") and buffers else found


class DDPAmp(DDP):
    """DDP with autocast: float16 with a loss scaler on CUDA, bfloat16 on CPU."""

    default_precision: ClassVar[Mapping[str, str]] = {"cpu": "amp-bf16", "cuda": "amp-fp16"}
    precisions = ("amp-bf16", "amp-fp16")


class DDPSyncBatchNorm(DDP):
    """DDP whose BatchNorm layers normalise over the global batch.

    torch.nn.SyncBatchNorm refuses CPU tensors, so on CPU the suite's own layer stands in; the row says which ran.
    """

    def move(self, model: nn.Module) -> nn.Module:
        layers = len(batch_norm_layers(model))
        kind = SyncBatchNorm if self.context.device_type == "cpu" else nn.SyncBatchNorm
        place = "torch.nn" if kind is nn.SyncBatchNorm else kind.__module__
        self._details = {"batch_norm": f"{place}.{kind.__name__} x{layers}"}
        # torch's own conversion leaves a layer that one module holds under two names as it was in the second place.
        return super().move(replace_batch_norm(model, kind))

    def traffic(self) -> Mapping[str, int]:
        """As DDP's, and the statistics of each BatchNorm layer in each micro-batch.

        Of C channels 2 C + 1 float32 are gathered in forward (mean, variance, count), 2 C sums reduced in backward.
        """
        found = dict(super().traffic())
        channels = [layer.num_features for layer in batch_norm_layers(self.model)]
        if found and channels:
            each = 4 * self.context.accumulate
            found["all_reduce"] += each * sum(2 * count for count in channels)
            found["all_gather"] = each * sum(2 * count + 1 for count in channels)
        return found

    def details(self) -> Mapping[str, str]:
        return self._details

    def warnings(self) -> Sequence[str]:
        return () if batch_norm_layers(self.model) else ("the model has no BatchNorm layer: this run is plain ddp",)


class DDPTuned(DDP):
    """DDP with channels_last, bfloat16, a fused optimizer, and gradients that are views of the buckets."""

    default_precision: ClassVar[Mapping[str, str]] = {"cpu": "amp-bf16", "cuda": "amp-bf16"}
    default_memory_format = "channels_last"
    fused_optimizer = True
    default_options: ClassVar[Mapping[str, Any]] = {**DDP_OPTIONS, "gradient_as_bucket_view": True}
