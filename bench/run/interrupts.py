"""Ends of a campaign that come from outside: SIGINT, SIGTERM and SIGHUP become one exception on the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(BaseException):
    """The campaign was asked to end. Not an Exception, so that no handler of errors swallows it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Handler:
    """Raises Interrupted once; keeps the signal for later while held."""

    def __init__(self) -> None:
        self.held = 0
        self._pending = ""
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._pending = self._pending or signal.Signals(number).name
        self.raise_pending()

    def raise_pending(self) -> None:
        if self._pending and not self.held and not self._raised:
            self._raised = True
            raise Interrupted(self._pending)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted at the first of the signals; while the clean-up runs, further ones change nothing.

    A SIGHUP that is ignored already stays ignored: that is what `nohup` asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    before: dict[int, Any] = {}
    try:
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            before[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Interrupted back until the block has ended: for what must not be left half done, and is short.

    A mask of signals would not do: the workers would inherit it, and other threads would take the signal meanwhile.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _Handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler.held += 1
    try:
        yield
    finally:
        handler.held -= 1
    handler.raise_pending()
