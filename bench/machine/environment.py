"""Facts of machine and software for environment.json, without importing torch.

Identity facts say what was measured on, and are hashed into `environment_id`: rows of equal ids may be pooled.
Volatile facts say when and under which load, and change nothing. Environment variables are taken by name from the
list below, never by pattern, so that no secret reaches a results folder.
"""

import getpass
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.errors import UserError
from bench.files import write_text_atomically
from bench.machine import gpus, host

FILE_NAME = "environment.json"
SOURCE = Path(__file__).resolve().parents[1] / "__init__.py"
"""A file directly inside the package: whether git tracks it says whose code this is."""

ENVIRONMENT_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_SETTINGS",
    "LRU_CACHE_CAPACITY",
    "MALLOC_ARENA_MAX",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_NTHREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_HIGH_PRIORITY",
)

SPEED_VARIABLES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_LAUNCH_BLOCKING",
        "GOMP_SPINCOUNT",
        "KMP_BLOCKTIME",
        "MKL_ENABLE_INSTRUCTIONS",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_DYNAMIC",
        "OMP_WAIT_POLICY",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "ONEDNN_MAX_CPU_ISA",
        "TORCH_COMPILE_DISABLE",
        "TORCH_DISTRIBUTED_DEBUG",
    }
)
"""Those that make ranks faster or slower: part of what was measured on. Ranks inherit them."""

BINDING_VARIABLES = frozenset({"GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"})
"""Those by which OpenMP would bind the threads of all ranks to the same first core. Ranks do not inherit them, since
each has its own share of the cores."""

# None of the variables above needs these; one that looks like them holds something that was put there by mistake.
_CREDENTIAL = re.compile(
    r"@|://|-----BEGIN|token|secret|passw|credential|bearer|authorization|api[_-]?key|[A-Za-z0-9_]{32,}", re.IGNORECASE
)
_LONGEST_VALUE = 400


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_library_version(library: str) -> str | None:
    """Version of the installed NVIDIA library that torch's own requirements name, such as nccl; else None."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        match = re.match(rf"nvidia-{library}(-cu\d+)?(?![\w-])", requirement)
        version = _version(match.group(0)) if match else None
        if version:
            return version
    return None


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.version()}"


def identity(kind: str, *, env: Mapping[str, str] | None = None, nvml: Any = None) -> dict[str, Any]:
    """The facts that two campaigns must share to be pooled. GPUs and their driver count for `kind` cuda alone."""
    env = os.environ if env is None else env
    shown, _ = environment_variables(env, anonymous=False)
    speed = {name: value for name, value in shown.items() if name in SPEED_VARIABLES}
    visible = gpus.visible_gpus(env=env, nvml=nvml) if kind == "cuda" else ()
    return {
        "device_kind": kind,
        "cpu": host.cpu_name(),
        "cores": host.available_cores(),
        "memory_gib": round(host.memory_limit_bytes() / 2**30),
        "architecture": platform.machine(),
        "gpus": [gpu.name for gpu in visible],
        "driver": visible[0].driver if visible else None,
        "cuda": gpus.torch_cuda_version(),
        "cudnn": _torch_library_version("cudnn"),
        "nccl": _torch_library_version("nccl"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchvision": _version("torchvision"),
        "numpy": _version("numpy"),
        "operating_system": _operating_system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "strategybench": _version("strategybench"),
        # Left out where none is set, so that it changes no id.
        **({"speed_variables": speed} if speed else {}),
    }


def notes(env: Mapping[str, str]) -> list[str]:
    """What a person should know of variables that are set: those that change the speed, and those without effect."""
    shown, _ = environment_variables(env, anonymous=False)
    told = [
        f"{name}={shown[name]} changes how fast ranks run; it is recorded as part of the environment"
        for name in sorted(SPEED_VARIABLES & shown.keys())
    ]
    return told + [
        f"{name} has no effect: each rank has its own share of the cores"
        for name in sorted(BINDING_VARIABLES & env.keys())
    ]


def spinning(env: Mapping[str, str]) -> str:
    """The variable that has threads of runs that wait for their turn burn their cores, as NAME=VALUE; "" without."""
    if env.get("OMP_WAIT_POLICY", "").lower() == "active":
        return f"OMP_WAIT_POLICY={env['OMP_WAIT_POLICY']}"
    for name, endless in (("GOMP_SPINCOUNT", ("infinite", "infinity")), ("KMP_BLOCKTIME", ("infinite",))):
        if env.get(name, "").lower() in endless:
            return f"{name}={env[name]}"
    return ""


def environment_id(facts: Mapping[str, Any]) -> str:
    """The first 12 hex digits of the SHA-256 of the facts as canonical JSON."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def private_words() -> list[str]:
    """Host and user name as they may occur inside other texts, in lower case."""
    host = platform.node().lower()
    return [word for word in {host, host.split(".")[0], (_user_name() or "").lower()} if word]


def environment_variables(env: Mapping[str, str], *, anonymous: bool) -> tuple[dict[str, str], list[str]]:
    """The listed variables that are set, and the names of those whose values are withheld."""
    private = private_words() if anonymous else []
    shown, withheld = {}, []
    for name in ENVIRONMENT_VARIABLES:
        value = env.get(name)
        if value is None:
            continue
        if len(value) > _LONGEST_VALUE or _CREDENTIAL.search(value) or any(word in value.lower() for word in private):
            withheld.append(name)
        else:
            shown[name] = value
    return shown, withheld


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command that only reads; None where it fails or there is no git."""
    # Variables such as GIT_DIR, set inside hooks, would answer for another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, env={**env, "GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def git_state(source: Path = SOURCE) -> tuple[str, bool | None]:
    """Commit of the suite and whether its packages differ from it; ("", None) where git does not track `source`.

    An installed copy inside some other repository is thereby never taken for that repository's code.
    """
    package, root = source.resolve().parent, source.resolve().parent.parent
    if _git(package, "ls-files", "--error-unmatch", "--", source.name) is None:
        return "", None
    commit = _git(package, "rev-parse", "HEAD")
    if not commit:
        return "", None
    folders = [name for name in (package.name, "strategies") if (root / name).is_dir()]
    changes = _git(root, "status", "--porcelain", "--", *folders)
    return commit, None if changes is None else bool(changes)


def _volatile(env: Mapping[str, str], *, anonymous: bool) -> dict[str, Any]:
    variables, withheld = environment_variables(env, anonymous=anonymous)
    commit, dirty = git_state()
    names = {} if anonymous else {"host": platform.node(), "user": _user_name()}
    return {
        **names,
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "memory_available_bytes": psutil.virtual_memory().available,
        "shared_memory_available_bytes": host.shared_memory_bytes(),
        "environment_variables": variables,
        "environment_variables_withheld": withheld,
        "git_commit": commit,
        "git_dirty": dirty,
    }


def collect(
    *, anonymous: bool = False, kind: str, env: Mapping[str, str] | None = None, nvml: Any = None
) -> dict[str, Any]:
    """The content of environment.json: `environment_id`, `identity` and `volatile`.

    `kind` is `cpu` or `cuda`. `anonymous` leaves out host and user name, and every variable that contains one; it
    does not change the id.
    """
    env = os.environ if env is None else env
    facts = identity(kind, env=env, nvml=nvml)
    return {
        "environment_id": environment_id(facts),
        "identity": facts,
        "volatile": _volatile(env, anonymous=anonymous),
    }


def write(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write what `collect` gave as `folder/environment.json`, atomically, keys sorted. Raises UserError on failure."""
    path = folder / FILE_NAME
    try:
        write_text_atomically(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror or error}") from None
    return path
