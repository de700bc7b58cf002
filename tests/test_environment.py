"""environment.json: what identifies a machine, what varies, and what must never get in."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml

from bench.errors import UserError
from bench.machine import environment, gpus, host


def test_shape() -> None:
    document = environment.collect(kind="cpu", env={"OMP_NUM_THREADS": "2"})
    assert set(document) == {"environment_id", "identity", "volatile"}
    assert document["environment_id"] == environment.environment_id(document["identity"])
    assert len(document["environment_id"]) == 12
    assert document["identity"]["gpus"] == []
    assert document["identity"]["python"] == platform.python_version()
    assert document["volatile"]["environment_variables"] == {"OMP_NUM_THREADS": "2"}


def test_id_is_the_hash_of_canonical_json() -> None:
    # printf '{"a":1,"b":[2]}' | sha256sum
    assert environment.environment_id({"b": [2], "a": 1}) == "0855bfc20eb6"


def test_versions_need_no_torch() -> None:
    facts = environment.identity("cpu", env={})
    torch = pytest.importorskip("torch")
    assert torch.__version__.startswith(facts["torch"])
    assert facts["cuda"] == torch.version.cuda


def test_identical_machine_identical_id(monkeypatch: pytest.MonkeyPatch) -> None:
    first = environment.collect(kind="cpu", env={"OMP_NUM_THREADS": "2"})
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0), raising=False)
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(environment, "git_state", lambda: ("0" * 40, True))
    second = environment.collect(kind="cpu", env={"NCCL_DEBUG": "INFO"}, anonymous=True)
    assert first["volatile"] != second["volatile"]
    assert first["environment_id"] == second["environment_id"]


@pytest.mark.parametrize("change", ["cpu_name", "available_cores", "memory_limit_bytes", "torch_cuda_version"])
def test_another_machine_another_id(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    before = environment.collect(kind="cpu", env={})
    other: dict[str, Any] = {"cpu_name": "x", "available_cores": 999, "memory_limit_bytes": 2**50}
    owner = gpus if change == "torch_cuda_version" else host
    monkeypatch.setattr(owner, change, lambda: other.get(change, "1.0"))
    assert environment.collect(kind="cpu", env={})["environment_id"] != before["environment_id"]


def test_gpus_count_for_cuda_alone() -> None:
    facts = environment.identity("cuda", env={"CUDA_VISIBLE_DEVICES": "1,2"}, nvml=FakeNvml(4))
    assert (facts["gpus"], facts["driver"]) == (["NVIDIA H200", "NVIDIA H200"], "580.65.06")
    same = environment.identity("cuda", env={"CUDA_VISIBLE_DEVICES": "0,3"}, nvml=FakeNvml(4))
    assert environment.environment_id(facts) == environment.environment_id(same)
    assert environment.identity("cpu", env={}, nvml=FakeNvml(4)) == environment.identity("cpu", env={})


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_TOKEN", SECRET),
        ("NCCL_PRIVATE", SECRET),
        ("TORCH_PASSWORD", SECRET),
        ("NCCL_NET", f"user:{SECRET}@host"),
        ("NCCL_SOCKET_IFNAME", f"https://user:{SECRET}@host/path"),
        ("NCCL_DEBUG", f"http://host/?token={SECRET}"),
        ("OMP_PLACES", f"password={SECRET}"),
        ("NCCL_IB_HCA", f"{SECRET}0123456789abcdef0123456789abcdef"),
        ("KMP_AFFINITY", SECRET * 100),
    ],
)
def test_a_planted_secret_never_reaches_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    path = environment.write(tmp_path, environment.collect(kind="cpu"))
    assert SECRET not in path.read_text()


def test_ordinary_values_are_kept_and_withheld_ones_named() -> None:
    env = {
        "CUDA_VISIBLE_DEVICES": "GPU-8f6b1c2d-1111-2222-3333-444455556666",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,garbage_collection_threshold:0.8",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "NCCL_SOCKET_IFNAME": "^=docker0,lo",
        "NCCL_NET": "a@b",
    }
    shown, withheld = environment.environment_variables(env, anonymous=False)
    assert withheld == ["NCCL_NET"]
    assert shown == {name: value for name, value in env.items() if name != "NCCL_NET"}


def test_the_list_of_variables_is_explicit() -> None:
    assert list(environment.ENVIRONMENT_VARIABLES) == sorted(set(environment.ENVIRONMENT_VARIABLES))
    assert not any("*" in name or "KEY" in name or "TOKEN" in name for name in environment.ENVIRONMENT_VARIABLES)


def test_anonymous_leaves_neither_host_nor_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "Quokka7.example.org")
    monkeypatch.setattr(environment.getpass, "getuser", lambda: "zaphod")
    env = {"NCCL_IB_HCA": "quokka7_mlx5", "OMP_PLACES": "/home/zaphod/places", "OMP_NUM_THREADS": "4"}
    named = json.dumps(environment.collect(kind="cpu", env=env))
    assert "zaphod" in named
    assert "Quokka7" in named
    document = environment.collect(kind="cpu", env=env, anonymous=True)
    text = environment.write(tmp_path, document).read_text().lower()
    assert "zaphod" not in text
    assert "quokka7" not in text
    assert document["volatile"]["environment_variables"] == {"OMP_NUM_THREADS": "4"}


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(environment.getpass, "getuser", nobody)
    assert environment.collect(kind="cpu", env={})["volatile"]["user"] is None


def test_written_sorted_and_readable(tmp_path: Path) -> None:
    document = environment.collect(kind="cpu", env={})
    text = environment.write(tmp_path, document).read_text()
    assert json.loads(text) == document
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"could not write .*environment\.json"):
        environment.write(tmp_path / "absent", {})


# --- git ---


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with bench/environment.py committed; yields that file."""
    source = tmp_path / "bench" / "environment.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "bench")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "m", "--no-gpg-sign")
    return source


def git(folder: Path, *arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=env)


def test_git_state_clean_and_dirty(repository: Path) -> None:
    commit, dirty = environment.git_state(repository)
    assert (len(commit), dirty) == (40, False)
    (repository.parent.parent / "notes.txt").write_text("outside the packages\n")
    assert environment.git_state(repository)[1] is False
    (repository.parent / "new.py").write_text("y = 2\n")
    assert environment.git_state(repository) == (commit, True)


def test_git_state_ignores_a_hooks_variables(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository.parent / "nowhere"))
    assert environment.git_state(repository)[1] is False


def test_git_state_of_an_installed_copy_inside_another_repository(repository: Path) -> None:
    copy = repository.parent.parent / ".venv" / "bench" / "environment.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("x = 1\n")
    assert environment.git_state(copy) == ("", None)


def test_git_state_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.git_state(repository) == ("", None)


def test_variables_that_change_the_speed_are_part_of_what_was_measured_on() -> None:
    plain = environment.collect(kind="cpu", env={})
    assert "speed_variables" not in plain["identity"]
    slow = environment.collect(kind="cpu", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"})
    assert slow["identity"]["speed_variables"] == {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert slow["environment_id"] != plain["environment_id"]
    assert environment.collect(kind="cpu", env={"NCCL_DEBUG": "INFO"})["environment_id"] == plain["environment_id"]


def test_a_person_is_told_of_variables_that_matter_and_of_those_without_effect() -> None:
    env = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_PROC_BIND": "true", "PATH": "/bin", "OMP_NUM_THREADS": "3"}
    assert environment.notes(env) == [
        "OMP_WAIT_POLICY=ACTIVE changes how fast ranks run; it is recorded as part of the environment",
        "OMP_PROC_BIND has no effect: each rank has its own share of the cores",
    ]
    assert environment.notes({}) == []


def test_every_variable_that_changes_the_speed_is_recorded() -> None:
    assert set(environment.ENVIRONMENT_VARIABLES) >= environment.SPEED_VARIABLES
    assert not environment.SPEED_VARIABLES & environment.BINDING_VARIABLES
