"""Options are stated once: what the command takes, what a matrix takes and what the help page says agree."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from bench.cli import RUN_OPTIONS, app
from bench.errors import UserError
from bench.factors import FACTORS, MATRIX_FACTORS
from bench.plan.matrix import GROUP_DEFAULTS, GROUP_KEYS, TOP_KEYS, Matrix
from bench.plan.options import (
    PANELS,
    Option,
    Wrong,
    from_words,
    list_of,
    one_of,
    reader_of,
    seconds,
    seconds_or,
    whole,
    whole_or,
)
from bench.run.request import Request

BY_NAME = {known.name: known for known in RUN_OPTIONS}
FACTOR = {factor.name: factor for factor in FACTORS}


@pytest.fixture(scope="module")
def help_page() -> str:
    from typer.testing import CliRunner

    found = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    return found.output


def test_no_two_options_share_a_name_or_a_spelling():
    assert len(BY_NAME) == len(RUN_OPTIONS)
    assert len({known.spelling for known in RUN_OPTIONS}) == len(RUN_OPTIONS)


def test_every_key_of_a_matrix_but_its_texts_is_an_option():
    assert {*GROUP_KEYS, *TOP_KEYS} - {*BY_NAME} == {"description"}
    assert {item.name for item in fields(Matrix)} == {"name", "groups", *TOP_KEYS}
    assert {*GROUP_KEYS} == {*GROUP_DEFAULTS} == {factor.key for factor in MATRIX_FACTORS}


def test_every_place_and_switch_of_a_request_is_an_option():
    assert {item.name for item in fields(Request)} - {*BY_NAME} == {"matrix", "overrides", "command"}


def test_the_help_page_has_every_option_once_in_its_group(help_page):
    """A group's heading stands alone on its line, its options follow it."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in help_page.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
        elif option := re.match(r"  (--[a-z-]+)", line):
            found.setdefault(heading, []).append(option[1])
    expected = {panel: [o.spelling.split("/")[0] for o in RUN_OPTIONS if o.panel == panel] for panel in PANELS}
    assert {panel: sorted(options) for panel, options in found.items() if panel != "Options"} == {
        panel: sorted(options) for panel, options in expected.items()
    }
    assert found["Options"] == ["--help"]


def test_the_help_page_shows_each_text(help_page):
    flat = " ".join(help_page.split())
    assert [known.name for known in RUN_OPTIONS if " ".join(known.help.split()) not in flat] == []


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("strategies", "single, ddp", ["single", "ddp"]),
        ("devices", "1,2", [1, 2]),
        ("devices", "auto", "auto"),
        ("steps", "7", 7),
        ("steps", "epoch", "epoch"),
        ("blocks", "auto", "auto"),
        ("batch", 64, 64),
        ("breakdown", True, True),
        ("breakdown", False, None),
        ("control", True, False),
        ("control", False, None),
        (
            "options",
            ["ddp.bucket_cap_mb=1,5", "ddp.static_graph=true"],
            {"ddp": {"bucket_cap_mb": [1, 5], "static_graph": True}},
        ),
        ("options", [], None),
        ("seed", None, None),
    ],
)
def test_what_is_typed_becomes_a_value(name, typed, value):
    assert from_words(BY_NAME[name], typed) == value


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("devices", "1,two", "--devices 1,two: give whole numbers with commas between, such as --devices 1,2"),
        ("strategies", " , ", "--strategies ' , ': give at least one value"),
        ("options", ["ddp=5"], "--set ddp=5: give STRATEGY.OPTION=VALUE"),
    ],
)
def test_what_is_typed_wrong_is_told(name, typed, words):
    with pytest.raises(UserError, match=re.escape(words)):
        from_words(BY_NAME[name], typed)


def test_a_switch_that_says_no_is_false_and_one_that_is_not_given_is_nothing():
    assert from_words(Option("x", shape="switch"), True) is True
    assert from_words(Option("x", shape="switch", flag="--no-x"), True) is False
    assert from_words(Option("x", shape="switch"), False) is None


@pytest.mark.parametrize(
    ("reader", "right", "wrong"),
    [
        (whole(1, 9), [(1, 1), (9, 9)], [0, 10, True, 1.0, "1"]),
        (whole_or({"auto": 0}), [("auto", 0), (3, 3)], [0, "x", True, []]),
        (
            seconds,
            [(90, 90.0), ("90", 90.0), ("2s", 2.0), ("1h30m", 5400.0), ("1.5 min", 90.0)],
            [0, "", "0", "x", "5 5"],
        ),
        (seconds_or("off"), [("off", "off"), ("0.5", 0.5)], ["on", -1]),
        (one_of("a", "b"), [("a", "a")], ["c", 1]),
        (list_of(whole(1)), [(2, (2,)), ([2, 1, 2], (2, 1))], [[], [0], "2"]),
        (reader_of(FACTOR["devices"]), [("auto", ()), ([1], (1,))], ["two", 0]),
        (reader_of(FACTOR["compile"]), [("off", "off")], ["on", ["off"]]),
    ],
)
def test_readers(reader, right, wrong):
    assert [reader(given) for given, _ in right] == [value for _, value in right]
    for given in wrong:
        with pytest.raises(Wrong):
            reader(given)
