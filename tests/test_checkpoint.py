"""Checkpoints: whole or not at all, loadable under every strategy and number of devices, and refused by name."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from campaigns import TOY, command, here, rows, run, save_arrays, spec, toy

from bench.checkpoint import CheckpointError, load_checkpoint, read_checkpoint, save_checkpoint
from bench.run.launch import launch
from bench.run.node import LocalNode
from bench.workloads.toy import Toy
from strategies.base import Context
from strategies.places import one_process
from strategies.single import Single

STATE = {"model": {"weight": torch.arange(5000.0)}, "optimizer": {"state": {}}}


def save(path: Path, *, workload: str = "toy", value: float = 0.0) -> Path:
    save_checkpoint(path, {**STATE, "model": {"weight": torch.full((5000,), value)}}, workload=workload, epoch=1)
    return path


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    state = read_checkpoint(save(tmp_path / "deep" / "a.pt", value=3.0), workload="toy")
    assert torch.equal(state["model"]["weight"], torch.full((5000,), 3.0))
    assert (state["workload"], state["epoch"]) == ("toy", 1)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.pt"]


def test_an_error_while_writing_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.pt", value=1.0)

    def half(_: object, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="No space left"):
        save(path, value=2.0)
    assert read_checkpoint(path, workload="toy")["model"]["weight"][0] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_a_kill_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", value=1.0)
    script = (
        "import os, pathlib, signal, sys, torch\n"
        "from bench.checkpoint import save_checkpoint\n"
        "def half(_, target):\n"
        "    target.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "torch.save = half\n"
        "save_checkpoint(pathlib.Path(sys.argv[1]), {'model': {}, 'optimizer': {}}, workload='toy', epoch=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert read_checkpoint(path, workload="toy")["model"]["weight"][0] == 1.0
    [left] = [file for file in tmp_path.iterdir() if file != path]
    # Neither another target's file nor that of a process that is alive is this one's to remove.
    others = [tmp_path / left.name.replace("a.pt", "aXpt"), tmp_path / f".a.pt.{os.getppid()}.tmp"]
    for other in others:
        other.touch()
    assert read_checkpoint(save(path, value=2.0), workload="toy")["model"]["weight"][0] == 2.0
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_tensors_of_a_gpu_are_read_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file says on which device each tensor was; this one says what a run on the second GPU would have written."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        path = save(tmp_path / "a.pt", value=3.0)
    with zipfile.ZipFile(path) as archive:
        [record] = [name for name in archive.namelist() if name.endswith("data.pkl")]
        assert b"cuda:1" in archive.read(record)
    weight = read_checkpoint(path, workload="toy")["model"]["weight"]
    assert weight.device.type == "cpu"
    assert torch.equal(weight, torch.full((5000,), 3.0))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.97])
def test_a_truncated_file_is_damaged(tmp_path: Path, share: float) -> None:
    path = save(tmp_path / "a.pt")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"checkpoint .*a\.pt is damaged or not a checkpoint: "):
        read_checkpoint(path, workload="toy")


def test_a_flipped_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """Bytes of padding between the records belong to nothing; every other one has a checksum."""
    path = save(tmp_path / "a.pt", value=1.0)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 53):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            state = read_checkpoint(path, workload="toy")
        except CheckpointError:
            refused += 1
        else:
            assert torch.equal(state["model"]["weight"], torch.ones(5000))
    # The numbers alone are 20 000 of the bytes.
    assert refused > 20_000 // 53


class Payload:
    """Runs a command when it is unpickled without care."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"workload": "toy", "model": Payload(), "optimizer": {}}, "evil.pt")
    Path("plain.pkl").write_bytes(pickle.dumps(Payload()))
    for name in ("evil.pt", "plain.pkl"):
        with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
            read_checkpoint(Path(name), workload="toy")
    assert not Path("ran").exists()


def test_files_of_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.pt does not exist"):
        read_checkpoint(tmp_path / "nothing.pt", workload="toy")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        read_checkpoint(tmp_path, workload="toy")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="was not written by this suite"):
        read_checkpoint(tmp_path / "other.pt", workload="toy")
    with pytest.raises(CheckpointError, match="is of workload cnn-cifar100, this run trains toy"):
        read_checkpoint(save(tmp_path / "cnn.pt", workload="cnn-cifar100"), workload="toy")


@pytest.mark.parametrize("make", ["text", "other"])
def test_the_command_refuses_before_anything_starts(tmp_path: Path, make: str) -> None:
    path = tmp_path / "a.pt"
    if make == "text":
        path.write_text("not a checkpoint")
    if make == "other":
        save(path, workload="resnet50-cifar10")
    done = run(toy(tmp_path / "out", "--init-from", str(path)), timeout=60)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_goes_from_two_ranks_to_the_bare_model_and_to_another_strategy(
    tmp_path: Path, node: LocalNode
) -> None:
    arrays = save_arrays(tmp_path / "data")
    path = tmp_path / "ddp.pt"
    first = launch(spec(tmp_path / "two", arrays, checkpoint=str(path)), node=node)
    assert (first.status, first.reason) == ("ok", "")
    state = read_checkpoint(path, workload="toy")
    model = Toy().make_model()
    # Strict: no name of a wrapper is left.
    model.load_state_dict(state["model"], strict=True)
    assert {tensor.device.type for tensor in state["model"].values()} == {"cpu"}
    # One rank, another strategy, from there: the same samples give the loss of the loaded weights.
    one = {"strategy": "single", "plan": one_process(), "backend": ""}
    fresh = launch(spec(tmp_path / "fresh", arrays, **one), node=node)
    second = launch(spec(tmp_path / "one", arrays, initial_state=str(path), **one), node=node)
    assert second.status == fresh.status == "ok"
    assert second.measurement is not None
    assert fresh.measurement is not None
    assert first.measurement is not None
    start = fresh.measurement.epochs[0].loss_first
    # Both began with the seed's weights and saw the same first batch; the resumed run began three steps further.
    assert first.measurement.epochs[0].loss_first == pytest.approx(start, rel=1e-5)
    assert second.measurement.epochs[0].loss_first < start

    strategy = Single()
    workload = Toy()
    context = Context(0, one_process(), (torch.device("cpu"),), workload.loss, (10,))
    strategy.build(context, workload.make_model, workload.make_optimizer)
    load_checkpoint(path, strategy, workload="toy")
    for name, value in strategy.model.state_dict().items():
        assert torch.equal(value, state["model"][name])


def test_a_campaign_resumes_with_the_checkpoint_it_was_begun_with(tmp_path: Path, node: LocalNode) -> None:
    path = tmp_path / "start.pt"
    model, workload = Toy().make_model(), Toy()
    optimizer = workload.make_optimizer(model.parameters())
    torch.nn.init.zeros_(model[2].weight)
    save_checkpoint(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, workload="toy", epoch=1)
    out = tmp_path / "out"
    made = command("smoke", "--strategies", "single", "--devices", "1", *TOY, "--quiet", "--out", str(out))
    assert here([*made, "--init-from", str(path)], node).returncode == 0
    [first] = rows(out)
    header, _ = (out / "runs.csv").read_text().splitlines()
    (out / "runs.csv").write_text(header + "\n")
    done = here(command("--resume", str(out), "--quiet"), node)
    assert done.returncode == 0, done.stderr
    [again] = rows(out)
    assert again["loss_first"] == first["loss_first"]
