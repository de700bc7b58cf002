"""A stand-in for pynvml: a machine of several GPUs whose state the tests set."""

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class FakeNvml:
    """`gpus` of one model. What is set to None, the driver does not support."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1

    def __init__(self, gpus: int = 4, *, name: str = "NVIDIA H200", mig: bool = False) -> None:
        self.name = name
        self.mig = mig
        self.uuids = [f"GPU-{number}a{number}b0000-1111-2222-3333-444455556666" for number in range(gpus)]
        self.clock: int | None = 1980
        self.default_clock: int | None = 1980
        self.reasons: int | None = 0
        self.utilization: int | None = 100
        self.pids: list[int] | None = []
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        assert self.open > 0, "the driver was asked before nvmlInit"
        if index >= len(self.uuids):
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if not uuid.startswith("MIG-known"):
            raise NVMLError("Not Found")
        return 1000

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:
        return 2

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.name

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=18 * 2**30 if handle == 1000 else 141 * 2**30)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def _known(self, value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetDefaultApplicationsClock(self, handle: int, kind: int) -> int:
        return self._known(self.default_clock)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 2000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._known(self.clock)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._known(self.reasons)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._known(self.utilization))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._known(self.pids)]


class NoDriver:
    """pynvml on a machine without the driver's library."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        raise NVMLError("NVML Shared Library Not Found")
