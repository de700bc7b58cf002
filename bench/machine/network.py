"""Network interfaces: the loopback one that ranks of one machine talk over, and those that variables name."""

from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from bench.errors import UserError

# --- network and platform ---------------------------------------------------------------------------------------------


def loopback_interface(*, addresses: Mapping[str, Any] | None = None) -> str | None:
    """The interface that holds 127.0.0.1 (`lo` on Linux, `lo0` on macOS); None where there is none."""
    for name, entries in (psutil.net_if_addrs() if addresses is None else addresses).items():
        if any(entry.address == "127.0.0.1" for entry in entries):
            return name
    return None


def loopback_variables() -> dict[str, str]:
    """What keeps gloo and nccl of ranks on one machine on its loopback interface; {} where there is none."""
    interface = loopback_interface()
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}


def _nccl_matches(value: str, names: Sequence[str]) -> list[str]:
    """Interfaces that NCCL_SOCKET_IFNAME selects: a comma list of beginnings; `=` whole names; `^` all but those."""
    exclude = value.startswith("^")
    value = value.removeprefix("^")
    exact = value.startswith("=")
    wanted = [part.strip().split(":")[0] for part in value.removeprefix("=").split(",") if part.strip()]
    hit = {name for name in names for want in wanted if (name == want if exact else name.startswith(want))}
    return [name for name in names if (name in hit) != exclude]


def check_network_interface(env: Mapping[str, str], *, names: Sequence[str] | None = None) -> None:
    """Raise UserError when a variable names an interface that does not exist, which would cost minutes of waiting."""
    names = sorted(psutil.net_if_addrs()) if names is None else list(names)
    gloo = env.get("GLOO_SOCKET_IFNAME", "").strip()
    missing = [part.strip() for part in gloo.split(",") if part.strip() and part.strip() not in names]
    nccl = env.get("NCCL_SOCKET_IFNAME", "").strip()
    existing = f"those that exist: {', '.join(names) or 'none'}"
    if missing:
        raise UserError(f"GLOO_SOCKET_IFNAME={gloo}: no network interface {missing[0]}; {existing}")
    if nccl and not _nccl_matches(nccl, names):
        raise UserError(f"NCCL_SOCKET_IFNAME={nccl}: no network interface matches; {existing}")
