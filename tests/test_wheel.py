"""The wheel, installed elsewhere, brings presets, templates and published figures with it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of a freshly built wheel, away from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wheels = list(folder.glob("strategybench-*.whl"))
    assert len(wheels) == 1
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, code: str) -> str:
    """Run code that sees the wheel's packages and not the checkout's."""
    program = f"import sys; sys.path.insert(0, {str(site)!r}); {code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=site, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_the_two_packages_and_nothing_of_the_tests(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"bench", "strategies"}


def test_presets_published_figures_and_templates_travel(installed: Path) -> None:
    code = (
        "import bench, bench.plan.matrix, bench.results.published;"
        "print(bench.__file__); print(bench.plan.matrix.preset_names());"
        "print([bench.plan.matrix.load_matrix(n).name for n in bench.plan.matrix.preset_names()])"
    )
    place, names, loaded = run(installed, code).splitlines()
    assert place.startswith(str(installed))
    assert names == loaded == "['article', 'cpu', 'full', 'gpu', 'smoke']"
    assert list((installed / "bench" / "published").glob("*.csv"))
    assert list((installed / "bench" / "view" / "templates").glob("*.j2"))
    assert run(installed, "import bench.results.published as p; print(len(p.load_published().rows))").strip() == "11"


def test_the_command_is_declared(installed: Path) -> None:
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "bench = bench.cli:main" in entry_points.read_text(encoding="utf-8")
