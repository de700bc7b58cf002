"""The registry of strategies: a table of names, so that listing them needs no torch.

Names are looked up in one place: the built-ins below, then the entry-point group `bench.strategies` of installed
packages, then the files named with `--strategy-file`. A strategy file defines `STRATEGIES`, a dictionary from
name to a subclass of `strategies.base.Strategy`. A name that is defined twice means none of the strategies that claim
it; such a name, and a plug-in that fails to import, is an error when it is asked for, and the others still work.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.base import Strategy

ENTRY_POINT_GROUP = "bench.strategies"
FILE_TABLE = "STRATEGIES"


class RegistryError(Exception):
    """A name that is unknown or defined twice, or a plug-in that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class StrategyEntry:
    """Where a strategy lives. `module` is a dotted name, or a path where `is_file`; `attribute` its class.

    `requires` names packages it needs beside the suite's own, as pip takes them, with the module that each gives where
    that has another name (`lightning`, or `nvidia-ml-py:pynvml`). `plain` is the strategy that this one is at another
    precision of, `tuned` the one that is this strategy as an expert would set it up, which a tuned one is itself; a
    class may state the same as `plain_twin` and `tuned_twin`. `broken` says why it cannot be used. An entry whose name
    is defined twice has no module: to choose one of the two in silence would measure what nobody asked for.
    """

    name: str
    module: str
    attribute: str
    description: str
    is_file: bool = False
    broken: str = ""
    requires: tuple[str, ...] = ()
    plain: str = ""
    tuned: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages of `requires` that are not installed."""
        pairs = (requirement.partition(":") for requirement in self.requires)
        return tuple(package for package, _, module in pairs if importlib.util.find_spec(module or package) is None)

    @property
    def place(self) -> str:
        """What a message about a broken entry begins with."""
        return self.module or f"strategy {self.name!r}"


BUILT_IN = (
    StrategyEntry(
        "single",
        "strategies.single",
        "Single",
        "one device, no parallelism: what everything is compared with",
        tuned="single_tuned",
    ),
    StrategyEntry(
        "single_tuned",
        "strategies.single",
        "SingleTuned",
        "one device as an expert would set it up",
        tuned="single_tuned",
    ),
    StrategyEntry(
        "dp", "strategies.data_parallel", "DataParallel", "torch.nn.DataParallel: N GPUs driven by one process"
    ),
    StrategyEntry("ddp", "strategies.ddp", "DDP", "DistributedDataParallel: one process a device", tuned="ddp_tuned"),
    StrategyEntry("ddp_amp", "strategies.ddp", "DDPAmp", "DDP with automatic mixed precision", plain="ddp"),
    StrategyEntry(
        "ddp_syncbn", "strategies.ddp", "DDPSyncBatchNorm", "DDP with BatchNorm statistics over all replicas"
    ),
    StrategyEntry(
        "ddp_mp", "strategies.model_parallel", "DDPModelParallel", "DDP over replicas split on two devices each"
    ),
    StrategyEntry("ddp_tuned", "strategies.ddp", "DDPTuned", "DDP as an expert would set it up", tuned="ddp_tuned"),
)


@dataclass(frozen=True)
class Registry:
    """All strategies known to one command: the built-ins, installed plug-ins and the given strategy files."""

    entries: dict[str, StrategyEntry]

    @classmethod
    def collect(cls, strategy_files: Iterable[Path] = ()) -> Registry:
        """Gather every entry without importing any strategy.

        A strategy file that cannot be read or parsed is kept as a broken entry under the file's name, and a name
        that is defined twice as a broken entry of that name, so that asking for it says why while the others still
        work.
        """
        plugins = [
            StrategyEntry(
                point.name, *_split(point.value), f"plug-in from {point.dist.name if point.dist else point.value}"
            )
            for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
        ]
        # A file that is named twice is still one file.
        paths = {path.resolve(): path for path in strategy_files}.values()
        files = [entry for path in paths for entry in _file_entries(path)]
        claims: dict[str, list[StrategyEntry]] = {}
        for entry in (*BUILT_IN, *plugins, *(entry for entry in files if not entry.broken)):
            claims.setdefault(entry.name, []).append(entry)
        entries = {name: claim[0] if len(claim) == 1 else _clash(claim) for name, claim in claims.items()}
        for entry in (entry for entry in files if entry.broken):
            # Its name is only the file's: it clashes with nothing that a strategy was called.
            names = (entry.name, Path(entry.module).name, entry.module)
            free = next(name for name in names if name not in entries)
            entries[free] = replace(entry, name=free)
        return cls(entries)

    def find(self, name: str) -> StrategyEntry:
        """The entry of that name. Raises RegistryError listing the known ones."""
        if name not in self.entries:
            broken = "".join(f"; {entry.place}: {entry.broken}" for entry in self.entries.values() if entry.broken)
            raise RegistryError(f"unknown strategy {name!r}; known are {', '.join(self.entries)}{broken}")
        return self.entries[name]

    def load(self, name: str) -> type[Strategy]:
        """Import the strategy's class. Raises RegistryError naming the plug-in whatever goes wrong in it."""
        entry = self.find(name)
        if entry.broken:
            raise RegistryError(f"strategy {name!r}{f' in {entry.module}' if entry.module else ''}: {entry.broken}")
        try:
            module = _import_file(Path(entry.module)) if entry.is_file else importlib.import_module(entry.module)
            found = getattr(module, FILE_TABLE)[name] if entry.is_file else getattr(module, entry.attribute)
        except (Exception, SystemExit) as error:
            raise RegistryError(
                f"strategy {name!r} could not be imported from {entry.module}: {type(error).__name__}: {error}"
            ) from error
        _check_class(name, entry, found)
        return found


@contextlib.contextmanager
def output_held_back() -> Iterator[None]:
    """Drop what is written to stdout meanwhile, by Python or by a child process: for a plug-in's code in the parent.

    The command's own output may be one JSON document that another program reads. stderr is left as it is.
    """
    with contextlib.ExitStack() as stack:
        # Where stdout is closed nothing can reach it.
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout is not None:
                sys.stdout.flush()
            kept = os.dup(1)
            stack.callback(os.close, kept)
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            stack.callback(os.dup2, kept, 1)
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield


def _clash(claim: list[StrategyEntry]) -> StrategyEntry:
    """The entry of a name that several claim: it says where, and loads none of them."""
    places = " and ".join(f"in {entry.module}" for entry in claim)
    times = "twice" if len(claim) == 2 else f"{len(claim)} times"
    advice = "rename all but one, or leave out what defines it again"
    return StrategyEntry(claim[0].name, "", "", "", broken=f"it is defined {times}: {places}; {advice}")


def _split(value: str) -> tuple[str, str]:
    module, _, attribute = value.partition(":")
    return module, attribute


def _file_entries(path: Path) -> list[StrategyEntry]:
    """The names a strategy file declares, read from its syntax tree: nothing in it runs yet."""
    place = str(path.resolve())
    broken = StrategyEntry(path.stem, place, "", "strategy file", is_file=True)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=place)
    except SyntaxError as error:
        return [replace(broken, broken=f"SyntaxError: {error.msg} (line {error.lineno})")]
    except (OSError, ValueError) as error:
        return [replace(broken, broken=f"{type(error).__name__}: {error}")]
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == FILE_TABLE for target in targets)
        value = getattr(statement, "value", None)
        if named and isinstance(value, ast.Dict):
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return [StrategyEntry(key, place, key, f"strategy file {path.name}", is_file=True) for key in keys]
    return [replace(broken, broken=f"defines no {FILE_TABLE} = {{'name': StrategyClass}}")]


def _import_file(path: Path) -> object:
    # Two files may have one name in two folders.
    name = f"strategy_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_class(name: str, entry: StrategyEntry, found: object) -> None:
    from strategies.base import Strategy

    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise RegistryError(f"strategy {name!r} in {entry.module} is not a subclass of strategies.base.Strategy")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise RegistryError(f"strategy {name!r} in {entry.module} lacks the method(s) {', '.join(missing)}")
