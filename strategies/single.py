"""One device: the plain loop that every speedup refers to, and the same device as an expert would set it up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strategies.base import Strategy
from strategies.places import Asked, Plan, one_device_only


class Single(Strategy):
    """One process, one device, no communication."""

    def plan(self, asked: Asked) -> Plan:
        return one_device_only(asked, "single")


class SingleTuned(Strategy):
    """One device with channels_last, bfloat16 autocast and a fused optimizer: the opponent of any number of devices.

    A parallel strategy that needs several devices to beat this one has a high COST (McSherry, Isard and Murray,
    "Scalability! But at what COST?", HotOS 2015). torch.compile is left off unless the matrix asks for it.
    """

    default_precision: ClassVar[Mapping[str, str]] = {"cpu": "amp-bf16", "cuda": "amp-bf16"}
    default_memory_format = "channels_last"
    fused_optimizer = True

    def plan(self, asked: Asked) -> Plan:
        return one_device_only(asked, "single_tuned")
