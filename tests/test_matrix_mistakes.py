"""What each mistake in a matrix is told: the file, the line, the key, and what would be right."""

import pytest

from bench.errors import UserError
from bench.plan.matrix import (
    GROUP_KEYS,
    TOP_KEYS,
    Group,
    Matrix,
    load_matrix,
    parse_matrix,
)

SIX = ("single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp")


def parse(text):
    return parse_matrix(text, name="m", source="m.toml")


# -- mistakes ---------------------------------------------------------------------------------------------------------

WRONG_VALUES = {
    "strategies": ["3", "[]", '[""]', "[1]"],
    "devices": ["0", "[1, 0]", "-1", "1.0", "true", '"two"', "[]", '["1"]'],
    "scaling": ['"both"', '["weak", "mild"]', "1"],
    "precision": ['"fp64"', "16", '["fp32", "half"]'],
    "batch": ["0", "2.5", '"big"', "true", "[32]"],
    "accumulate": ["0", "false", '"2"'],
    "memory_format": ['"nhwc"', "true"],
    "compile": ["true", '"fast"'],
    "data_pipeline": ['"dali"', "1"],
    "trace": ["1", '"on"'],
    "start": ['"hot"', "true"],
    "loader_workers": ["-1", "0.5"],
    "description": ["1", '""'],
    "device": ['"gpu"', "0"],
    "workload": ["1", '""'],
    "dataset": ['"mnist"', "[]"],
    "steps": ["0", '"all"', "1.5", "true"],
    "warmup_steps": ["-1", "0.5", "false"],
    "epochs": ["0", '"one"'],
    "blocks": ["0", '"many"', "true"],
    "seed": ["-1", "4294967296", "0.0", '"x"'],
    "threads_per_device": ["0", "1.5"],
    "timeout": ["0", "-5", "inf", "nan", '"1h"', "true"],
    "baseline": ["1", '""'],
    "control": ["1", '"yes"', "0"],
    "breakdown": ['"true"', "1"],
    "precision_target": ["0", '"1 %"', "-0.1"],
    "max_blocks": ["1", '"x"'],
    "time_limit": ["0", '"2h"'],
    "time_target": ["0", '"soon"', '"5 5"', "true"],
    "turns": ["0", '"on"', "false"],
    "race": ["1", '"auto"'],
    "repeat_disturbed": ["-1", "true", "1.5"],
    "options": ["3", "[]", "{ ddp = 3 }"],
}


def test_wrong_values_are_tried_for_every_key():
    assert set(WRONG_VALUES) == {*TOP_KEYS, *GROUP_KEYS}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
def test_a_wrong_value_at_the_top_names_key_line_and_what_is_right(key, value):
    with pytest.raises(UserError) as caught:
        parse(f"# a comment with {key} = 1\n\n{key} = {value}\n")
    message = str(caught.value)
    assert message.startswith(f"m.toml, line 3: {key} = ")
    assert "is not right; it takes " in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("key", GROUP_KEYS)
def test_a_wrong_value_in_a_cells_table_names_that_tables_line(key):
    text = f"[[cells]]\ndevices = [1]\nbatch = 8\n\n[[cells]]\n{key} = {WRONG_VALUES[key][0]}\n"
    with pytest.raises(UserError, match=rf"^m\.toml, line 6: {key} = .* is not right; it takes "):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("\nspeed = 1\n", 2, "speed"),
        ("seed = 1\n'stepz' = 1\n", 2, "stepz"),
        ("[extra]\nx = 1\n", 1, "extra"),
        ("seed = 1\n\n[extra.deeper]\nx = 1\n", 3, "extra"),
        ("extra.x = 1\n", 1, "extra"),
        ("[[cells]]\nbatch = 8\n[[cells]]\nseed = 1\n", 4, "seed"),
        ("[[cells]]\nworkload = 'toy'\n", 2, "workload"),
        ("[[cells]]\nbatch = 8\n[cells.more]\nx = 1\n", 3, "more"),
        ("seed = 1\n[[cells]]\n[[cells]]\n  batchsize = 8\n", 4, "batchsize"),
    ],
)
def test_an_unknown_key_is_named_with_its_line_and_the_known_ones(text, line, key):
    with pytest.raises(UserError, match=rf"^m\.toml, line {line}: unknown key '{key}'; known are .*strategies"):
        parse(text)


def test_a_wrong_options_table_is_named_by_its_header():
    with pytest.raises(UserError, match=r"^m\.toml, line 2: options = .* it takes tables such as \[options\.ddp\]"):
        parse("seed = 1\n[options]\nddp = 3\n")


@pytest.mark.parametrize("text", ["\ncells = 3\n", "\n[cells]\nbatch = 1\n", "\ncells = [1]\n"])
def test_cells_that_are_no_tables_are_refused(text):
    with pytest.raises(UserError, match=r"^m\.toml, line 2: cells must be tables, each under \[\[cells\]\]"):
        parse(text)


def test_text_that_is_no_toml_is_told_where():
    with pytest.raises(UserError, match=r"m\.toml is not valid TOML: .*line 2"):
        parse("seed = 1\nsteps == 3\n")


def test_an_unknown_preset_is_told_the_known_ones():
    with pytest.raises(UserError, match=r"unknown preset 'fast'; known are article, cpu, full, gpu, smoke, or give a"):
        load_matrix("fast")


def test_files_are_read_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('strategies = ["ddp"]\n', encoding="utf-8")
    assert load_matrix(str(path)) == Matrix(name="mine", groups=(Group(strategies=("ddp",)),))
    path.write_bytes(b'description = "\xff"\n')
    with pytest.raises(UserError, match="could not read"):
        load_matrix(str(path))
    with pytest.raises(UserError, match=r"could not read .*No such file"):
        load_matrix(str(tmp_path / "none.toml"))
