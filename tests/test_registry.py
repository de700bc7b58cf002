"""The registry: built-ins, installed plug-ins and strategy files, found without importing any of them."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

import strategies
from bench.view.listing import LISTS, lines
from strategies import BUILT_IN, Registry, RegistryError
from strategies.base import Plan, Strategy
from strategies.ddp import DDP
from strategies.places import one_process


class Installed(Strategy):
    def plan(self, asked):
        return one_process(asked.devices)


class Unfinished(Strategy):
    pass


@pytest.fixture
def install(monkeypatch):
    """Pretend that packages with these entry points (name -> value) are installed, and their modules importable."""

    def pretend(points, **modules):
        found = [EntryPoint(name, value, strategies.ENTRY_POINT_GROUP) for name, value in points]
        asked = []

        def entry_points(*, group):
            asked.append(group)
            return found

        monkeypatch.setattr(strategies, "entry_points", entry_points)
        for name, contents in modules.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)
        return asked

    return pretend


def test_the_built_ins_have_distinct_names_and_a_line_each():
    assert len({entry.name for entry in BUILT_IN}) == len(BUILT_IN)
    assert {"single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp"} <= {entry.name for entry in BUILT_IN}
    assert all(entry.description and len(entry.description.splitlines()) == 1 for entry in BUILT_IN)


@pytest.mark.parametrize("name", [entry.name for entry in BUILT_IN])
def test_every_built_in_loads(name):
    assert issubclass(Registry.collect().load(name), Strategy)


def test_installed_plugins_stand_after_the_built_ins(install):
    asked = install([("zeta", "plugin_one:Installed"), ("alpha", "plugin_one:Installed")])
    names = list(Registry.collect().entries)
    assert asked == ["bench.strategies"]
    assert names == [*(entry.name for entry in BUILT_IN), "alpha", "zeta"]


def test_an_installed_plugin_loads(install):
    install([("mine", "plugin_one:Installed")], plugin_one={"Installed": Installed})
    assert Registry.collect().load("mine") is Installed


@pytest.mark.parametrize(
    ("points", "name", "words"),
    [
        ([("ddp", "plugin_one:Installed")], "ddp", "twice: in strategies.ddp and in plugin_one; rename"),
        (
            [("mine", "plugin_one:Installed"), ("mine", "plugin_two:B")],
            "mine",
            "twice: in plugin_one and in plugin_two",
        ),
        ([("ddp", "one:A"), ("ddp", "two:B")], "ddp", "3 times: in strategies.ddp and in one and in two;"),
    ],
)
def test_a_name_defined_again_is_nobody_s_and_the_others_still_work(install, points, name, words):
    install(points, plugin_one={"Installed": Installed})
    registry = Registry.collect()
    with pytest.raises(RegistryError, match=f"^strategy '{name}': it is defined {words}"):
        registry.load(name)
    assert registry.load("ddp_amp").__module__ == "strategies.ddp"
    with pytest.raises(RegistryError, match=f"unknown strategy 'other'; .*; strategy '{name}': it is defined {words}"):
        registry.find("other")


def test_an_unknown_name_lists_the_known_ones(install):
    install([("mine", "plugin_one:Installed")])
    with pytest.raises(RegistryError, match=r"unknown strategy 'fsdp9'; known are single, .*ddp_mp.*, mine"):
        Registry.collect().find("fsdp9")


@pytest.mark.parametrize(
    ("value", "contents", "words"),
    [
        ("no_such_plugin:Installed", {}, "ModuleNotFoundError"),
        ("plugin_one:Missing", {}, "AttributeError"),
        ("plugin_one:Unfinished", {"Unfinished": Unfinished}, r"lacks the method\(s\) plan"),
        ("plugin_one:thing", {"thing": 3}, "is not a subclass"),
        ("plugin_one:Plan", {"Plan": Plan}, "is not a subclass"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_and_the_others_still_work(install, value, contents, words):
    install([("bad", value)], plugin_one=contents)
    registry = Registry.collect()
    with pytest.raises(RegistryError, match=f"strategy 'bad' .*{words}"):
        registry.load("bad")
    assert registry.load("ddp") is DDP


def test_collecting_imports_no_plugin(install):
    install([("bad", "no_such_plugin:Installed")])
    assert "bad" in Registry.collect().entries


# -- listing ----------------------------------------------------------------------------------------------------------


def test_listing_names_every_strategy_with_its_description():
    listed = list(lines("strategies"))
    assert [line.split()[0] for line in listed][: len(BUILT_IN)] == [entry.name for entry in BUILT_IN]
    assert all(entry.description in line for entry, line in zip(BUILT_IN, listed, strict=False))


def test_listing_shows_a_name_defined_twice(install):
    install([("ddp", "plugin_one:Installed")])
    [line] = [line for line in lines("strategies") if line.startswith("ddp ")]
    assert line.split(maxsplit=1)[1].startswith("it is defined twice: in strategies.ddp and in plugin_one; rename")


def test_descriptions_stand_in_one_column():
    starts = {line.index(entry.description) for entry, line in zip(BUILT_IN, lines("strategies"), strict=False)}
    assert len(starts) == 1


@pytest.mark.parametrize("what", LISTS)
def test_every_list_has_lines_without_trailing_blanks(what):
    listed = list(lines(what))
    assert listed
    assert all(line == line.rstrip() and len(line.split()) > 1 for line in listed)


def test_listing_strategies_imports_no_torch_and_no_strategy():
    program = (
        "import sys; from bench.view.listing import lines; list(lines('strategies'));"
        "print(sorted(name for name in sys.modules if name == 'torch' or name.startswith('strategies.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
