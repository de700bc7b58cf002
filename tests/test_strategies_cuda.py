"""Every decision that depends on CUDA, with fakes in place of the devices: no GPU is asked for."""

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.machine.detect import backend
from bench.worker import build
from bench.worker import rank as rank_module
from bench.worker.rank import Rank
from bench.worker.state import make_timer
from bench.worker.timing import BreakdownTimer, ClockTimer, EventTimer
from strategies import BUILT_IN, Registry
from strategies.base import Context
from strategies.places import Place, data_parallel, one_process
from strategies.sync_batch_norm import SyncBatchNorm

SIX = ("single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp")
AMP = ("amp-bf16", "amp-fp16")


def gpus(*numbers):
    return tuple(torch.device("cuda", number) for number in numbers)


CPU = (torch.device("cpu"),)


def context(devices, **changes):
    values = {"rank": 0, "plan": one_process(), "devices": devices, "loss": nn.functional.mse_loss}
    return Context(**(values | {"input_shape": (4,)} | changes))


def strategy(name, devices, **changes):
    made = Registry.collect().load(name)()
    made.context = context(devices, **changes)
    return made


class Recorder:
    """Takes the place of a class or function, and remembers what it was called with."""

    def __init__(self, result=None):
        self.calls = []
        self.result = result

    def __call__(self, *arguments, **keywords):
        self.calls.append((arguments, keywords))
        return self.result if self.result is not None else SimpleNamespace()


class Moved(nn.Linear):
    """A layer that remembers where it was sent instead of going there."""

    def __init__(self, inputs=4, outputs=4):
        super().__init__(inputs, outputs)
        self.sent = []

    def to(self, *arguments, **keywords):
        self.sent.append(arguments[0] if arguments else keywords["memory_format"])
        return self


class MovedSequential(nn.Sequential):
    sent = None

    def to(self, *arguments, **keywords):
        self.sent = [*(self.sent or []), arguments[0] if arguments else keywords["memory_format"]]
        return self


class Sent:
    """A tensor that remembers where it was sent."""

    def __init__(self, dims):
        self.dims = dims
        self.device = None
        self.format = None

    def dim(self):
        return self.dims

    def to(self, device, *, non_blocking, memory_format=None):
        assert non_blocking
        self.device = device
        self.format = memory_format or self.format
        return self


# -- wrapping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddp", "ddp_amp", "ddp_syncbn"])
@pytest.mark.parametrize("devices", [CPU, gpus(0), gpus(3)])
def test_ddp_is_bound_to_the_one_gpu_of_its_process_and_to_none_on_cpu(name, devices, monkeypatch):
    wrapper = Recorder()
    monkeypatch.setattr("strategies.ddp.DistributedDataParallel", wrapper)
    model = nn.Linear(4, 4)
    strategy(name, devices).wrap(model)
    expected = None if devices == CPU else [devices[0].index]
    assert wrapper.calls == [((model,), {"device_ids": expected})]


def test_ddp_mp_wraps_its_stages_without_device_ids(monkeypatch):
    wrapper = Recorder()
    monkeypatch.setattr("strategies.ddp.DistributedDataParallel", wrapper)
    made = strategy("ddp_mp", gpus(2, 3))
    made.wrap(made.move(nn.Sequential(Moved(), Moved())))
    ((staged,), keywords) = wrapper.calls[0]
    assert keywords == {"device_ids": None}
    assert [device for _, device in staged._stages] == list(gpus(2, 3))


def test_ddp_mp_sends_each_half_to_its_gpu_and_targets_to_the_last():
    layers = [Moved() for _ in range(4)]
    made = strategy("ddp_mp", gpus(2, 3))
    made.move(nn.Sequential(*layers))
    assert [layer.sent[0] for layer in layers] == [*gpus(2, 2), *gpus(3, 3)]
    inputs, targets = made.place(Sent(2), Sent(1))
    assert (inputs.device, targets.device) == gpus(2, 3)


def test_data_parallel_drives_all_gpus_of_its_process(monkeypatch):
    wrapper = Recorder()
    monkeypatch.setattr(nn, "DataParallel", wrapper)
    model = nn.Linear(4, 4)
    strategy("dp", gpus(0, 1, 2, 3)).wrap(model)
    strategy("dp", CPU).wrap(model)
    assert wrapper.calls == [((model,), {"device_ids": [0, 1, 2, 3]}), ((model,), {})]


@pytest.mark.parametrize("name", ["single", "dp", "ddp"])
def test_the_model_and_the_batch_go_to_the_first_gpu(name):
    made = strategy(name, gpus(1, 2) if name == "dp" else gpus(1))
    model = made.move(Moved())
    assert model.sent == [gpus(1)[0], torch.contiguous_format]
    assert {part.device for part in made.place(Sent(2), Sent(1))} == set(gpus(1))


def test_images_are_placed_in_the_layout_of_the_run():
    made = strategy("single", gpus(0), memory_format="channels_last")
    assert made.place(Sent(4), Sent(1))[0].format is torch.channels_last
    assert made.place(Sent(2), Sent(1))[0].format is None
    assert made.move(Moved()).sent[1] is torch.channels_last


def test_synchronised_batch_norm_is_torchs_on_cuda_and_the_suites_own_on_cpu():
    cuda, cpu = strategy("ddp_syncbn", gpus(0)), strategy("ddp_syncbn", CPU)
    model = cuda.move(MovedSequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    assert type(model[1]) is nn.SyncBatchNorm
    assert cuda.details() == {"batch_norm": "torch.nn.SyncBatchNorm x1"}
    model = cpu.move(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    assert type(model[1]) is SyncBatchNorm
    assert "strategies.sync_batch_norm.SyncBatchNorm x1" in cpu.details()["batch_norm"]


# -- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [CPU, gpus(1)])
@pytest.mark.parametrize("precision", ["fp32", "tf32", *AMP])
def test_the_loss_scaler_scales_for_float16_alone(devices, precision, monkeypatch):
    scaler = Recorder()
    monkeypatch.setattr("strategies.context.CountingScaler", scaler)
    context(devices, precision=precision).make_scaler()
    assert scaler.calls == [((devices[0].type,), {"enabled": precision == "amp-fp16"})]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", None), ("tf32", None), ("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)]
)
@pytest.mark.parametrize("devices", [CPU, gpus(1)])
def test_autocast_is_of_the_device_and_the_precision(devices, precision, dtype, monkeypatch):
    autocast = Recorder(nullcontext())
    monkeypatch.setattr(torch, "autocast", autocast)
    context(devices, precision=precision).autocast()
    assert autocast.calls == ([] if dtype is None else [((devices[0].type,), {"dtype": dtype})])


def test_default_precisions_by_device():
    found = {name: dict(Registry.collect().load(name).default_precision) for name in SIX}
    assert found.pop("ddp_amp") == {"cpu": "amp-bf16", "cuda": "amp-fp16"}
    assert all(default == {"cpu": "fp32", "cuda": "fp32"} for default in found.values())


@pytest.mark.parametrize("name", [entry.name for entry in BUILT_IN])
def test_every_default_precision_is_one_the_strategy_runs_at(name):
    found = Registry.collect().load(name)
    assert set(found.default_precision) == {"cpu", "cuda"}
    assert not found.precisions or set(found.default_precision.values()) <= set(found.precisions)


@pytest.fixture
def numerics():
    """The process's flags, put back afterwards."""
    places = (torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")
    places += ((torch.backends.cudnn, "benchmark"),)
    before = [getattr(*place) for place in places]
    yield
    for (owner, name), value in zip(places, before, strict=True):
        setattr(owner, name, value)


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("amp-bf16", True)])
@pytest.mark.usefixtures("numerics")
def test_fp32_is_ieee_everywhere_and_tf32_is_asked_for(precision, allowed):
    build.set_numerics(precision)
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cudnn.benchmark is True


# -- ranks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch):
    """Fakes of what a rank asks of torch; returns what was called."""
    called = SimpleNamespace(set_device=Recorder(), synchronize=Recorder(), threads=Recorder(), group=Recorder())
    called.own_group, called.all_reduce = Recorder("the harness's own"), Recorder()
    monkeypatch.setattr(torch.cuda, "set_device", called.set_device)
    monkeypatch.setattr(torch.cuda, "synchronize", called.synchronize)
    monkeypatch.setattr(torch, "set_num_threads", called.threads)
    monkeypatch.setattr(rank_module.dist, "init_process_group", called.group)
    monkeypatch.setattr(rank_module.dist, "new_group", called.own_group)
    monkeypatch.setattr(rank_module.dist, "all_reduce", called.all_reduce)
    monkeypatch.setattr(rank_module.dist, "FileStore", lambda path, size: (path, size))
    return called


def parallel(ranks, devices=1):
    return data_parallel(ranks, devices=devices).places


def make_rank(monkeypatch, *, local, rank, places, kind="cuda", rendezvous="folder/rendezvous"):
    size = len(places)
    for name, value in (("LOCAL_RANK", local), ("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.setenv(name, str(value))
    spec = SimpleNamespace(
        device_kind=kind,
        threads_per_device=3,
        backend=backend(kind),
        rendezvous=rendezvous,
        timeout_seconds=60.0,
        cell=SimpleNamespace(places=places),
    )
    return Rank.from_environment(spec)


@pytest.mark.parametrize(
    ("local", "devices", "expected"),
    [(0, 1, (0,)), (3, 1, (3,)), (0, 4, (0, 1, 2, 3)), (0, 2, (0, 1)), (1, 2, (2, 3)), (3, 2, (6, 7))],
)
def test_a_processs_gpus_follow_its_local_rank(local, devices, expected, cuda, monkeypatch):
    made = make_rank(monkeypatch, local=local, rank=local, places=parallel(4, devices))
    assert made.devices == gpus(*expected)
    assert cuda.set_device.calls == [((made.devices[0],), {})]
    assert cuda.threads.calls == [((3,), {})]


def test_the_second_machines_ranks_use_its_own_gpus(cuda, monkeypatch):
    made = make_rank(monkeypatch, local=1, rank=5, places=parallel(8))
    assert (made.rank, made.world_size, made.devices, made.place.part) == (5, 8, gpus(1), 5)


def test_ranks_of_one_copy_read_the_same_part(cuda, monkeypatch):
    places = tuple(Place(part=rank // 2, piece=rank % 2) for rank in range(4))
    made = [make_rank(monkeypatch, local=rank, rank=rank, places=places) for rank in range(4)]
    assert [rank.place.part for rank in made] == [0, 0, 1, 1]


def test_gpus_are_counted_where_ranks_have_unlike_numbers_of_them(cuda, monkeypatch):
    places = (Place(devices=3, part=0), Place(devices=1, part=1), Place(devices=2, part=2))
    made = [make_rank(monkeypatch, local=rank, rank=rank, places=places).devices for rank in range(3)]
    assert made == [gpus(0, 1, 2), gpus(3), gpus(4, 5)]


def test_a_cpu_rank_touches_no_gpu(cuda, monkeypatch):
    made = make_rank(monkeypatch, local=1, rank=1, places=parallel(2, 2), kind="cpu")
    made.synchronize()
    assert made.devices == CPU * 2
    assert cuda.set_device.calls == cuda.synchronize.calls == []


def test_synchronize_waits_for_every_gpu_of_the_process(cuda, monkeypatch):
    make_rank(monkeypatch, local=1, rank=1, places=parallel(2, 2)).synchronize()
    assert cuda.synchronize.calls == [((device,), {}) for device in gpus(2, 3)]


@pytest.mark.parametrize(
    ("kind", "devices", "bound"), [("cuda", 1, gpus(1)[0]), ("cuda", 2, None), ("cpu", 1, None), ("cpu", 2, None)]
)
def test_a_group_is_bound_to_a_gpu_only_where_its_process_has_one_alone(kind, devices, bound, cuda, monkeypatch):
    made = make_rank(monkeypatch, local=1, rank=1, places=parallel(2, devices), kind=kind)
    made.start_group()
    ((_, keywords),) = cuda.group.calls
    assert keywords["backend"] == ("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    assert keywords.get("device_id") == bound
    assert keywords["timeout"] == timedelta(seconds=60)
    assert keywords["store"] == ("folder/rendezvous", 2)
    assert (keywords["rank"], keywords["world_size"]) == (1, 2)
    assert cuda.own_group.calls == [((), {"backend": "gloo", "timeout": timedelta(seconds=60)})]
    assert [keywords for _, keywords in cuda.all_reduce.calls] == [{"group": "the harness's own"}]


def test_under_torchrun_the_group_takes_its_place_from_the_environment(cuda, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    make_rank(monkeypatch, local=0, rank=0, places=parallel(2), rendezvous="env://").start_group()
    ((_, keywords),) = cuda.group.calls
    assert keywords["init_method"] == "env://"
    assert "store" not in keywords
    assert keywords["timeout"] == timedelta(seconds=60)


@pytest.mark.parametrize(
    ("devices", "breakdown", "kind"),
    [
        (gpus(0), False, EventTimer),
        (gpus(0), True, BreakdownTimer),
        (CPU, False, ClockTimer),
        (CPU, True, BreakdownTimer),
    ],
)
def test_the_timer_suits_the_device(devices, breakdown, kind):
    rank = SimpleNamespace(devices=devices, synchronize=None, barrier=None)
    run = SimpleNamespace(rank=rank, spec=SimpleNamespace(breakdown=breakdown))
    assert type(make_timer(run)) is kind
