"""One file over HTTP: streamed to a `.part` file beside its target, its MD5 taken on the way, then renamed."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from bench.data.specs import Progress

_CHUNK_BYTES = 1 << 18


class DownloadFailed(Exception):
    """The file could not be had; the message is the reason alone, to stand inside a longer sentence."""


def download(
    url: str,
    target: Path,
    *,
    md5: str,
    timeout_seconds: float,
    limit_seconds: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fetch `url` to `target`, or leave nothing behind.

    `timeout_seconds` bounds the connection and every silence; `limit_seconds`, where given, the whole download
    (exceeded by one silence at most). Raises DownloadFailed when the server does not answer, answers with an error,
    falls silent, closes early, takes longer than the limit or sends a file of another MD5, and when the disk refuses
    the file.
    """
    if limit_seconds is not None and limit_seconds <= 0:
        raise DownloadFailed("downloading is switched off")
    part = target.with_name(target.name + ".part")
    deadline = None if limit_seconds is None else clock() + limit_seconds
    try:
        with part.open("wb") as file:
            digest = _fetch(
                url, file, timeout_seconds=timeout_seconds, deadline=deadline, progress=progress, clock=clock
            )
        if digest != md5:
            raise DownloadFailed(f"the file that came has MD5 {digest}, not {md5}")
        part.replace(target)
    except OSError as error:
        raise DownloadFailed(f"{part} could not be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def _fetch(
    url: str,
    file: BinaryIO,
    *,
    timeout_seconds: float,
    deadline: float | None,
    progress: Progress | None,
    clock: Callable[[], float],
) -> str:
    """Write the body of `url` to `file` and return its MD5. Network errors become DownloadFailed."""
    # A socket that waits longer than the time left would overrun a short limit.
    timeout = timeout_seconds if deadline is None else max(0.001, min(timeout_seconds, deadline - clock()))
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return _copy(response, file, deadline=deadline, progress=progress, clock=clock)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadFailed(f"the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(_network_reason(error, timeout)) from None


def _copy(
    response: http.client.HTTPResponse,
    file: BinaryIO,
    *,
    deadline: float | None,
    progress: Progress | None,
    clock: Callable[[], float],
) -> str:
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() else 0
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    # read1 returns what has arrived: read would wait for a full chunk, past any deadline when the bytes only trickle.
    while chunk := response.read1(_CHUNK_BYTES):
        digest.update(chunk)
        try:
            file.write(chunk)
        except OSError as error:
            raise DownloadFailed(f"the disk refused the file: {error.strerror or error}") from None
        done += len(chunk)
        if progress is not None:
            progress(done, total)
        if deadline is not None and clock() > deadline and done != total:
            raise DownloadFailed(f"the time limit came after {done / 1e6:.1f} of {total / 1e6:.1f} MB")
    if total and done < total:
        raise DownloadFailed(f"the connection closed after {done} of {total} bytes")
    return digest.hexdigest()


def _network_reason(error: Exception, timeout_seconds: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer for {timeout_seconds:g} s"
    if isinstance(cause, OSError):
        return cause.strerror or str(cause) or type(cause).__name__
    return str(cause) or type(cause).__name__
