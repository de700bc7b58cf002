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


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted at the first of the signals; while the clean-up runs, further ones change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise Interrupted(signal.Signals(number).name)

    before: dict[int, Any] = {}
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
