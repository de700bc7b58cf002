"""The report in a real browser: no message on the console, every picture shown, the answer on the first screen."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_campaign import Options, write_campaign

from bench.view.report import build_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed (apt-get install chromium)")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000",
)  # fmt: skip

# The page itself holds no script. This one goes into a copy of it and writes what the browser made of the page into
# an attribute, which --dump-dom prints. The copy drops the page's own rule against scripts.
PROBE = """<script>addEventListener("load", () => {
  const seen = [...document.images].map(i => i.complete && i.naturalWidth > 0);
  const box = document.querySelector(".answer .head").getBoundingClientRect();
  parent.postMessage([seen.length, seen.filter(x => x).length, Math.round(box.top), Math.round(box.bottom),
    document.documentElement.scrollWidth, innerWidth, innerHeight,
    matchMedia("(prefers-color-scheme: dark)").matches ? 1 : 0,
    performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length].join(","), "*");
});</script></body>"""

# A headless window is never narrower than about 500 pixels, so the page stands in a frame of the wanted width.
FRAME = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body style="margin:0">
<script>addEventListener("message", event => { document.body.dataset.probe = event.data; });</script>
<iframe src="{name}" style="border:0; width:{width}px; height:900px"></iframe></body>"""


def browse(tmp_path: Path, page: Path, width: int, *more: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", *more]
    # Its own home and no session bus: nothing of the user's configuration is read or written.
    env = {**os.environ, "HOME": str(tmp_path), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, page.as_uri()], capture_output=True, text=True, timeout=120, env=env, check=True
        )

    try:
        return start()
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        # A browser that did not come up says nothing about the page; one that fails twice does.
        return start()


def framed(tmp_path: Path, page: Path, width: int) -> Path:
    """A page with the report, and the probe in it, in a frame of this width."""
    text = re.sub(r"<meta http-equiv=.*?>", "", page.read_text(encoding="utf-8"))
    inner = tmp_path / f"inner-{width}.html"
    inner.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    outer = tmp_path / f"outer-{width}.html"
    outer.write_text(FRAME.replace("{name}", inner.name).replace("{width}", str(width)), encoding="utf-8")
    return outer


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    return build_report([write_campaign(folder, Options(blocks=3))], folder / "report")[0]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_as_it_is_has_a_quiet_console(tmp_path: Path, report: Path, width: int) -> None:
    picture = tmp_path / "page.png"
    done = browse(tmp_path, report, width, f"--screenshot={picture}")
    assert "CONSOLE" not in done.stderr, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_and_answer(tmp_path: Path, report: Path, width: int, dark: bool) -> None:
    page = framed(tmp_path, report, width)
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = browse(tmp_path, page, width, scheme, "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    match = re.search(r'data-probe="([\d,-]+)"', done.stdout)
    assert match, done.stdout[-500:]
    images, loaded, top, bottom, scroll, inner_width, inner_height, is_dark, requests = map(int, match[1].split(","))
    assert inner_width == width
    assert images == loaded == 7
    assert 0 <= top < bottom <= min(inner_height, 800)
    assert scroll <= inner_width, "the page is wider than the screen"
    assert bool(is_dark) is dark
    assert requests == 0
