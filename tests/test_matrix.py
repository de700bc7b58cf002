"""Matrices from TOML and options: what is accepted, what each mistake is told, and that a resolved one reads back."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UserError
from bench.factors import (
    COMPILE_MODES,
    DATA_PIPELINES,
    DATASET_NAMES,
    DEVICE_KINDS,
    MEMORY_FORMATS,
    PRECISIONS,
    SCALINGS,
)
from bench.plan.matrix import (
    Group,
    Matrix,
    from_resolved,
    load_matrix,
    option_sets,
    override,
    parse_matrix,
    preset_names,
    to_toml,
)
from bench.workloads import WORKLOADS
from strategies import BUILT_IN, Registry

SIX = ("single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp")


def parse(text):
    return parse_matrix(text, name="m", source="m.toml")


# -- presets ----------------------------------------------------------------------------------------------------------


def test_the_presets_are_those_of_the_documentation():
    assert preset_names() == ["article", "cpu", "full", "gpu", "smoke"]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_matrix_of_known_names(name):
    matrix = load_matrix(name)
    assert matrix.name == name
    assert matrix.description
    assert matrix.workload in WORKLOADS
    known = {entry.name for entry in BUILT_IN}
    for group in matrix.groups:
        assert group["strategies"]
        assert set(group["strategies"]) <= known


def test_what_smoke_and_cpu_ask_for():
    smoke, cpu = load_matrix("smoke"), load_matrix("cpu")
    assert smoke.groups == (Group(strategies=SIX, devices=(1, 2), batch=32),)
    assert (smoke.device, smoke.dataset, smoke.blocks, smoke.control) == ("cpu", "synthetic", 1, False)
    assert (cpu.groups[0]["strategies"], cpu.groups[0]["devices"]) == (SIX, ())
    assert (cpu.steps, cpu.blocks, cpu.time_target, cpu.turns) == (0, 0, 300.0, "auto")


def test_full_asks_for_every_built_in_strategy_at_both_scalings():
    (group,) = load_matrix("full").groups
    assert set(group["strategies"]) == {entry.name for entry in BUILT_IN}
    assert group["scaling"] == ("strong", "weak")
    assert load_matrix("full").steps is None


def test_what_strategies_state_is_in_the_vocabulary():
    registry = Registry.collect()
    for name in registry.entries:
        strategy = registry.load(name)
        assert {*strategy.precisions, *strategy.default_precision.values()} <= {*PRECISIONS}
        assert {*strategy.default_precision} == {*DEVICE_KINDS}
        assert strategy.default_memory_format in MEMORY_FORMATS
        assert strategy.default_compile in COMPILE_MODES


# -- groups -----------------------------------------------------------------------------------------------------------


def test_tables_inherit_what_they_do_not_say():
    matrix = parse(
        'strategies = ["single"]\nbatch = 64\nprecision = ["fp32"]\n'
        '[[cells]]\ndevices = [1]\n[[cells]]\nstrategies = ["ddp"]\ndevices = 2\nbatch = 128\n'
    )
    common = {"precision": ("fp32",)}
    assert matrix.groups == (
        Group(strategies=("single",), devices=(1,), batch=64, **common),
        Group(strategies=("ddp",), devices=(2,), batch=128, **common),
    )


def test_without_tables_the_top_is_the_one_group():
    matrix = parse('strategies = "ddp"\ndevices = [2, 1, 2]\nscaling = "weak"\nsteps = "epoch"\nblocks = "auto"\n')
    assert matrix.groups == (Group(strategies=("ddp",), devices=(2, 1), scaling=("weak",)),)
    assert (matrix.steps, matrix.blocks) == (None, 0)


# -- options of the command -------------------------------------------------------------------------------------------


def test_options_replace_keys_in_all_groups_and_none_means_not_given():
    matrix = override(load_matrix("article"), {"batch": 64, "steps": 3, "devices": [2], "seed": None})
    assert {group["batch"] for group in matrix.groups} == {64}
    assert {group["devices"] for group in matrix.groups} == {(2,)}
    assert (matrix.steps, matrix.seed) == (3, 0)


def test_groups_made_equal_by_an_option_are_one():
    matrix = parse('strategies = ["ddp"]\n[[cells]]\nbatch = 8\n[[cells]]\nbatch = 16\n')
    assert len(override(matrix, {"batch": 4}).groups) == 1


def test_no_option_changes_nothing():
    matrix = load_matrix("cpu")
    assert override(matrix, {"batch": None, "devices": None}) == matrix


def test_auto_gives_the_choice_back_to_the_machine():
    assert override(load_matrix("smoke"), {"devices": "auto"}).groups[0]["devices"] == ()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"devices": [0]}, "--devices"),
        ({"devices": ["x"]}, "--devices"),
        ({"warmup_steps": -1}, "--warmup-steps"),
        ({"threads_per_device": 0}, "--threads-per-device"),
        ({"steps": "all"}, "--steps"),
        ({"memory_format": "nhwc"}, "--memory-format"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
    ],
)
def test_a_wrong_option_is_named_as_typed(options, name):
    with pytest.raises(UserError, match=f"^{name}: .* is not right; it takes "):
        override(load_matrix("smoke"), options)


def test_a_strategys_options_are_merged_one_by_one():
    matrix = parse("[options.ddp]\nbucket_cap_mb = 5\nstatic_graph = true\n[options.other]\nx = 1\n")
    changed = override(matrix, {"options": {"ddp": {"bucket_cap_mb": 10}}})
    assert changed.options == {"ddp": {"bucket_cap_mb": 10, "static_graph": True}, "other": {"x": 1}}
    assert matrix.options["ddp"]["bucket_cap_mb"] == 5


def test_a_list_sweeps_an_option():
    assert option_sets({}) == [()]
    assert option_sets({"a": [1, 2], "b": 3, "c": [True, False]}) == [
        (("a", 1), ("b", 3), ("c", True)),
        (("a", 1), ("b", 3), ("c", False)),
        (("a", 2), ("b", 3), ("c", True)),
        (("a", 2), ("b", 3), ("c", False)),
    ]


# -- resolved matrices ------------------------------------------------------------------------------------------------


def round_trip(matrix, extra=None):
    return from_resolved(to_toml(matrix, extra or {}), source="matrix.toml")


@pytest.mark.parametrize("name", preset_names())
def test_a_resolved_preset_reads_back(name):
    matrix = load_matrix(name)
    extra = {"command": 'bench run "x\\y"', "threads_per_device": 2, "strategy_files": ["a b.py"], "notice": ""}
    assert round_trip(matrix, extra) == (matrix, extra)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
counts = st.integers(1, 10**9)
lists = {
    "strategies": st.lists(texts, max_size=3, unique=True),
    "devices": st.lists(counts, max_size=3, unique=True),
    "scaling": st.lists(st.sampled_from(SCALINGS), min_size=1, unique=True),
    "precision": st.lists(st.sampled_from(PRECISIONS), unique=True),
}
group = st.builds(
    Group,
    **{name: made.map(tuple) for name, made in lists.items()},
    batch=st.none() | counts,
    accumulate=counts,
    memory_format=st.none() | st.sampled_from(MEMORY_FORMATS),
    compile=st.none() | st.sampled_from(COMPILE_MODES),
    data_pipeline=st.sampled_from(DATA_PIPELINES),
)
positive = st.floats(0, 1e300, exclude_min=True, allow_nan=False)
value = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | texts
matrices = st.builds(
    Matrix,
    name=texts,
    groups=st.lists(group, min_size=1, max_size=3).map(tuple),
    description=st.just("") | texts,
    device=st.sampled_from(("auto", *DEVICE_KINDS)),
    workload=texts,
    dataset=st.sampled_from(DATASET_NAMES),
    steps=st.none() | counts,
    warmup_steps=st.integers(0, 9),
    epochs=counts,
    blocks=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
    threads_per_device=st.none() | counts,
    timeout=positive,
    baseline=texts,
    control=st.booleans(),
    breakdown=st.booleans(),
    trace=st.booleans(),
    loader_workers=st.integers(0, 9),
    precision_target=st.none() | positive,
    max_blocks=st.integers(2, 99),
    time_limit=st.none() | positive,
    repeat_disturbed=st.integers(0, 9),
    options=st.dictionaries(texts, st.dictionaries(texts, value | st.lists(value, max_size=3), max_size=2), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_any_matrix_reads_back_from_its_toml(matrix):
    text = to_toml(matrix, {"command": matrix.description})
    assert tomllib.loads(text)["name"] == matrix.name
    assert from_resolved(text, source="matrix.toml") == (matrix, {"command": matrix.description})


def test_a_character_outside_the_basic_plane_reads_back():
    matrix = Matrix(name="tag \U000e0001 and \x7f", groups=(Group(strategies=("ddp",)),))
    assert round_trip(matrix)[0] == matrix


@pytest.mark.parametrize("text", ["name = \n", 'name = "x"\n\n[campaign]\ncommand = \n'])
def test_a_resolved_matrix_that_was_torn_is_a_clear_message(text):
    with pytest.raises(UserError, match=r"matrix\.toml"):
        from_resolved(text, source="matrix.toml")


def test_a_mistake_edited_into_a_resolved_matrix_is_named_by_the_files_line():
    lines = to_toml(load_matrix("smoke"), {}).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("seed"))
    lines[place] = "seed = true"
    with pytest.raises(UserError, match=rf"^matrix\.toml, line {place + 1}: seed = true"):
        from_resolved("\n".join(lines) + "\n", source="matrix.toml")


def test_a_campaign_s_matrix_can_be_run_again_as_it_is(tmp_path: Path) -> None:
    matrix = load_matrix("smoke")
    (tmp_path / "matrix.toml").write_text(
        to_toml(matrix, {"campaign_id": "c", "command": "bench smoke"}), encoding="utf-8"
    )
    assert load_matrix(str(tmp_path / "matrix.toml")) == matrix
