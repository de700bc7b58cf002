"""A user's mistakes: one short message that names what is wrong, exit code 2, and nothing started."""

import errno
import gzip
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from generated import noisy_campaign, write_campaign

from bench import homes
from bench.cli import main
from bench.data import preparation
from bench.data.download import DownloadFailed
from bench.machine import gpus, host
from bench.run import attempt
from bench.run import prepare as preparing

TOY = ("--workload", "toy", "--dataset", "synthetic", "--data-root", "data")
LONG = "x" * 300


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """The command in this process and an empty folder, without network, GPUs or more than two cores."""

    def never(*_, **__):
        raise AssertionError("a run was started")

    def offline(*_, **__):
        raise DownloadFailed("no network here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attempt, "Watched", never)
    monkeypatch.setattr(preparation, "download", offline)
    monkeypatch.setattr(homes.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr(gpus, "query_gpus", lambda *_: ((), "no NVIDIA driver answers"))
    monkeypatch.setattr(host, "available_cores", lambda: 2)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["bench", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


def refused(result, folder, *, files=()):
    """The message of a refusal, after all that must hold for any of them."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("bench: ")
    assert 1 <= len(err.strip().splitlines()) <= 2
    assert not [path for path in folder.rglob("*") if path.name in ("logs", "runs.csv", "matrix.toml", ".lock")]
    left = {path.name for path in folder.iterdir()} - {"data", "cache"}
    assert left == set(files)
    return err


CASES = {
    "unknown preset": (("run", "fast"), "unknown preset 'fast'; known are article, cpu"),
    "missing file": (("run", "none.toml"), "could not read none.toml: No such file"),
    "unknown strategy": (("run", "smoke", "--strategies", "single,dpp"), "unknown strategy 'dpp'; known are single"),
    "no strategy": (("run", "smoke", "--strategies", ","), "--strategies ',': give at least one value"),
    "unknown workload": (("run", "smoke", "--workload", "vgg"), "unknown workload 'vgg'; known are resnet50-cifar10"),
    "unknown dataset": (("run", "smoke", "--dataset", "mnist"), '--dataset: dataset = "mnist" is not right'),
    "unfitting dataset": (("run", "smoke", "--dataset", "cifar100"), "cifar100 does not fit this workload"),
    "devices 0": (("run", "smoke", "--devices", "0"), "--devices: devices = [0] is not right"),
    "devices -1": (("run", "smoke", "--devices", "1,-1"), "it takes a whole number of at least 1"),
    "devices 1.5": (("run", "smoke", "--devices", "1.5"), "--devices 1.5: give whole numbers"),
    "devices two": (("run", "smoke", "--devices", "two"), "--devices two: give whole numbers"),
    "too many devices": (("run", "smoke", "--devices", "1,3"), "3 devices x 1 thread = 3 > 2 cores"),
    "too many threads": (("run", "smoke", "--threads-per-device", "2"), "2 devices x 2 threads = 4 > 2 cores"),
    "batch of 0": (("run", "smoke", "--batch", "0"), "--batch: batch = 0 is not right"),
    "odd batch": (("run", "smoke", "--batch", "33"), "a global batch of 33 does not divide into 2 parts"),
    "odd accumulation": (("run", "smoke", "--accumulate", "3"), "does not divide into 1 part x 3 micro-batches"),
    "batch norm of one": (("run", "smoke", "--batch", "2"), "2 samples / 2 = 1 per part"),
    "batch over data": (("run", "smoke", "--batch", "60000"), "60000 exceeds the 50000 training samples"),
    "steps beyond": (("run", "smoke", "--steps", "1563"), "--steps 1563 > 1562 full batches of 32"),
    "warm-up beyond": (("run", "smoke", "--warmup-steps", "1563"), "--warmup-steps 1563 > 1562 full"),
    "steps 0": (("run", "smoke", "--steps", "0"), "--steps: steps = 0 is not right; it takes a whole number of at"),
    "steps word": (("run", "smoke", "--steps", "all"), 'steps = "all" is not right'),
    "steps --5": (("run", "smoke", "--steps=--5"), 'steps = "--5" is not right'),
    "steps digit": (("run", "smoke", "--steps", "²"), "--steps: steps ="),
    "blocks 2.5": (("run", "smoke", "--blocks", "2.5"), 'or "auto"'),
    "epochs 0": (("run", "smoke", "--epochs", "0"), "--epochs: epochs = 0"),
    "seed": (("run", "smoke", "--seed", "-1"), "--seed: seed = -1 is not right"),
    "huge seed": (("run", "smoke", "--seed", "99999999999999999999"), "and at most 4294967295"),
    "timeout 0": (("run", "smoke", "--timeout", "0"), "--timeout: timeout = 0.0 is not right; it takes a number above"),
    "timeout nan": (("run", "smoke", "--timeout", "nan"), "--timeout: timeout = nan"),
    "time limit": (("run", "smoke", "--time-limit", "-1"), "--time-limit: time_limit = -1.0"),
    "device": (("run", "smoke", "--device", "gpu"), "it takes one of auto, cpu, cuda"),
    "device, no preset": (("run", "--device", "gpu"), "device 'gpu' is unknown"),
    "cuda": (("run", "smoke", "--device", "cuda"), "device cuda: no GPU can be used: no NVIDIA driver answers"),
    "gpu preset": (("run", "gpu"), "device cuda: no GPU can be used"),
    "precision": (("run", "smoke", "--precision", "fp64"), "it takes one of fp32, tf32, amp-bf16, amp-fp16"),
    "scaling": (("run", "smoke", "--scaling", "mild"), "--scaling: scaling"),
    "layout": (("run", "smoke", "--memory-format", "nhwc"), "--memory-format: memory_format"),
    "compile": (("run", "smoke", "--compile", "yes"), "--compile: compile"),
    "baseline name": (("run", "smoke", "--baseline", "none"), "--baseline: unknown strategy 'none'"),
    "baseline count": (("run", "smoke", "--baseline", "single@two"), "'two' is no device count"),
    "baseline 0": (("run", "smoke", "--baseline", "single@0"), "'0' is no device count"),
    "baseline 01": (("run", "smoke", "--baseline", "single@01"), "'01' is no device count"),
    "baseline digit": (("run", "smoke", "--baseline", "single@²"), "is no device count"),
    "set form": (("run", "smoke", "--set", "bucket_cap_mb=5"), "give STRATEGY.OPTION=VALUE"),
    "set empty": (("run", "smoke", "--set", "ddp.bucket_cap_mb="), "give STRATEGY.OPTION=VALUE"),
    "set option": (("run", "smoke", "--set", "ddp.bucket=5"), "strategy 'ddp' has no option 'bucket'"),
    "set strategy": (("run", "smoke", "--set", "ddq.bucket_cap_mb=5"), "unknown strategy 'ddq'"),
    "set value": (("run", "smoke", "--set", "ddp.bucket_cap_mb=big"), "takes a number, not 'big'"),
    "set null": (("run", "smoke", "--set", "ddp.bucket_cap_mb=null"), "takes a number, not 'null'"),
    "set flag": (("run", "smoke", "--set", "ddp.static_graph=2"), "takes true or false"),
    "strategy file": (("run", "smoke", "--strategy-file", "none.py"), "--strategy-file none.py does not exist"),
    "long strategy file": (("run", "smoke", "--strategy-file", LONG), "does not exist"),
    "long out": (("run", "smoke", *TOY, "--out", LONG), "File name too long; choose another --out"),
    "no preset": (("run", ""), "unknown preset ''; known are article, cpu"),
    "trace alone": (("run", "smoke", "--trace"), "--trace keeps the profiler's trace of breakdown runs, and there are"),
    "list of no file": (("list", "strategies", "--strategy-file", "none.py"), "--strategy-file none.py does not exist"),
    "data": (("data", "prepare", "mnist"), "unknown dataset 'mnist'; known: "),
    "resume nothing": (("run", "--resume", "none"), "none cannot be resumed: could not read matrix.toml"),
    "no data": (("run", "smoke", "--dataset", "cifar10", "--data-root", "data"), "CIFAR-10 is not in "),
    "list": (("list", "colours"), "there is no such list; known are strategies, workloads, presets, columns"),
    "compare nothing": (("compare", "A", "B"), "A is not a folder; give the results folder of a campaign"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_told_in_a_line_or_two_and_nothing_is_started(case, bench, tmp_path):
    words, expected = CASES[case]
    assert expected in refused(bench(*words), tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strategies = ['ddp']\nspeed = 1\n", "m.toml, line 2: unknown key 'speed'; known are description"),
        ("strategies = ['ddp']\n\ndevices = 0\n", "m.toml, line 3: devices = 0 is not right"),
        ("strategies = ['ddp']\nbatch = '32'\n", 'm.toml, line 2: batch = "32" is not right'),
        ("[[cells]]\nstrategies = ['ddp']\n[[cells]]\nblocks = 3\n", "m.toml, line 4: unknown key 'blocks'"),
        ("strategies = [\n", "m.toml is not valid TOML"),
        ("description = 'nothing'\n", "matrix m names no strategy"),
        ("strategies = ['ddp']\n[options.ddp]\nbucket = 1\n", "strategy 'ddp' has no option 'bucket'"),
        ("strategies = ['ddp']\n[options.ddp]\nbucket_cap_mb = []\n", "'ddp' sweeps no value; give at least one"),
        ("strategies = ['ddp']\n[options.ddp]\nbucket_cap_mb = nan\n", "takes a number, not 'nan'"),
        ("\ufeffstrategies = ['ddp']\nspeed = 1\n", "m.toml, line 2: unknown key 'speed'"),
        ("strategies = ['ddp']\n[options.ddq]\nbucket = 1\n", "unknown strategy 'ddq'"),
    ],
)
def test_a_mistake_in_a_matrix_file_is_named_with_its_line(text, expected, bench, tmp_path):
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    assert expected in refused(bench("run", "m.toml", "--device", "cpu"), tmp_path, files={"m.toml"})


@pytest.mark.parametrize("out", ["taken", "taken/below"])
def test_a_file_in_the_way_of_the_results(out, bench, tmp_path):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    message = refused(bench("run", "smoke", *TOY, "--out", out), tmp_path, files={"taken"})
    assert f"could not write to {out}: " in message
    assert "choose another --out" in message
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("out", ["taken", "taken/below", LONG])
@pytest.mark.parametrize("words", [("report",), ("plot",), ("track", "--to", "tensorboard")])
def test_a_place_that_cannot_be_written_is_named(words, out, bench, tmp_path):
    write_campaign(tmp_path / "C", noisy_campaign(seed=0, blocks=1))
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    code, _, err = bench(words[0], "C", *words[1:], "--out", out)
    assert code == 2
    assert err.startswith(f"bench: could not use {out}")
    assert err.endswith("; give another place, or move what is in the way\n")
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


def test_a_folder_in_the_way_of_the_summary(bench, tmp_path):
    (write_campaign(tmp_path / "C", noisy_campaign(seed=0, blocks=1)) / "summary.csv").mkdir()
    code, _, err = bench("report", "C")
    assert code == 2
    assert err.startswith("bench: could not use C/summary.csv: Is a directory; ")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "environment.json",
            "[1]",
            "C/environment.json does not hold what the suite wrote: '[1]' stands in place of a",
        ),
        ("environment.json", "null", "C/environment.json does not hold what the suite wrote: 'None'"),
        ("matrix.toml", "campaign = 3\n", "C/matrix.toml does not hold what the suite wrote: '3'"),
    ],
)
@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_file_of_another_shape_is_named(command, name, text, expected, bench, tmp_path):
    folder = write_campaign(tmp_path / "C", noisy_campaign(seed=0, blocks=1))
    (folder / name).write_text(text, encoding="utf-8")
    code, _, err = bench(command, "C")
    assert (code, err.startswith(f"bench: {expected}")) == (2, True), err


def test_a_number_that_no_frame_holds_is_told(bench, tmp_path):
    folder = write_campaign(tmp_path / "C", noisy_campaign(seed=0, blocks=1))
    [header, first, *rest] = (folder / "runs.csv").read_text(encoding="utf-8").splitlines()
    cells = first.split(",")
    cells[header.split(",").index("block")] = "99999999999999999999"
    text = "\n".join([header, ",".join(cells), *rest, ""])
    (folder / "runs.csv").write_text(text, encoding="utf-8")
    code, _, err = bench("report", "C")
    assert (code, err) == (2, "bench: column block holds a number of more than 64 bits; no run wrote that\n")


@pytest.mark.parametrize("text", ["strategy_files = 3", "strategy_files = [3]", "checkpoint = 3"])
def test_a_recorded_path_of_another_kind_is_told(text, bench, tmp_path):
    (tmp_path / "C").mkdir()
    matrix = f"strategies = ['single']\ndevice = 'cpu'\n[campaign]\n{text}\n"
    (tmp_path / "C" / "matrix.toml").write_text(matrix, encoding="utf-8")
    code, _, err = bench("run", "--resume", "C")
    assert (code, "[campaign]: strategy_files must be a list of paths" in err) == (2, True), err


def test_a_folder_that_already_holds_a_campaign_is_left_alone(bench, tmp_path):
    folder = write_campaign(tmp_path / "O", noisy_campaign(seed=0, blocks=1))
    before = (folder / "runs.csv").read_bytes()
    code, out, err = bench("run", "smoke", *TOY, "--out", "O")
    assert (code, out) == (2, "")
    assert "bench: O already holds a campaign; continue it with --resume O, or choose another --out" in err
    assert [path.name for path in folder.iterdir()] == ["runs.csv"]
    assert (folder / "runs.csv").read_bytes() == before
    assert not (tmp_path / "data").exists(), "data were prepared before the folder was looked at"


def test_a_campaign_that_came_and_went_while_data_were_prepared_is_left_alone(bench, tmp_path, monkeypatch):
    prepare = preparing.prepare

    def prepare_while_another_measures(*words, **options):
        write_campaign(tmp_path / "O", noisy_campaign(seed=0, blocks=1))
        return prepare(*words, **options)

    monkeypatch.setattr(preparing, "prepare", prepare_while_another_measures)
    code, _, err = bench("run", "smoke", *TOY, "--out", "O")
    assert code == 2
    assert "bench: O already holds a campaign; continue it with --resume O, or choose another --out" in err
    assert {path.name for path in (tmp_path / "O").iterdir()} <= {"runs.csv", "logs", ".lock"}


@pytest.mark.parametrize("column", ["status", "role"])
def test_a_word_that_the_suite_does_not_write_is_named(column, bench, tmp_path):
    write_campaign(tmp_path / "O", [{**line, column: "fine"} for line in noisy_campaign(seed=0, blocks=1)])
    code, _, err = bench("report", "O")
    assert code == 2
    assert err.startswith(f"bench: O/runs.csv, line 2: {column} 'fine' is none of ")


def test_rows_of_another_schema_version_are_not_read(bench, tmp_path):
    write_campaign(tmp_path / "O", [{**line, "schema_version": "2"} for line in noisy_campaign(seed=0, blocks=1)])
    code, out, err = bench("report", "O")
    assert (code, out) == (2, "")
    assert err == "bench: O/runs.csv, line 2: schema version '2', this version of the suite reads '1'\n"
    assert [path.name for path in (tmp_path / "O").iterdir()] == ["runs.csv"]


READERS = {
    "report": ("report", "C"),
    "plot": ("plot", "C"),
    "export": ("export", "C"),
    "compare": ("compare", "C", "C"),
    "track": ("track", "C", "--to", "tensorboard"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_that_may_not_be_read(reader, bench, tmp_path, monkeypatch):
    """Simulated: an administrator may read everything."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    expected = "bench: could not use C: Permission denied; give another place, or move what is in the way\n"
    assert bench(*READERS[reader]) == (2, "", expected)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("report", "C", "--out", "taken"), "could not use taken: File exists; "),
        (("plot", "C", "--out", "taken/below"), "could not use taken/below: Not a directory; "),
        (("report", "C", "--out", LONG), f"could not use {LONG}: File name too long; "),
        (("export", LONG), f"could not use {LONG}: File name too long; "),
    ],
)
def test_a_path_that_cannot_be_used(words, reason, bench, tmp_path):
    write_campaign(tmp_path / "C", noisy_campaign(seed=0, blocks=1))
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    code, out, err = bench(*words)
    assert (code, out) == (2, "")
    assert err == f"bench: {reason}give another place, or move what is in the way\n"
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


def test_a_fault_of_the_suite_is_not_taken_for_a_mistake(bench, monkeypatch):
    def fail(path):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "is_dir", fail)
    with pytest.raises(PermissionError):
        bench("report", "C")


def test_a_file_in_the_way_of_the_checkpoints(bench, tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    message = refused(bench("run", "smoke", *TOY, "--out", "O", "--checkpoint", "taken"), tmp_path, files={"taken"})
    assert message.startswith("bench: --checkpoint taken: ")


def test_a_mistake_leaves_no_checkpoint_folder(bench, tmp_path):
    refused(bench("run", "smoke", "--batch", "33", "--checkpoint", "C"), tmp_path)


def test_a_missing_checkpoint_to_start_from(bench, tmp_path):
    assert "none.pt" in refused(bench("run", "smoke", *TOY, "--init-from", "none.pt"), tmp_path)


def test_a_strategy_file_that_takes_a_known_name(bench, tmp_path):
    """It is told before the matrix begins, or here, is refused for another reason."""
    (tmp_path / "mine.py").write_text("STRATEGIES = {'ddp': None}\n", encoding="utf-8")
    words = ("run", "smoke", "--strategies", "single", "--batch", "60000", "--strategy-file", "mine.py")
    code, out, err = bench(*words)
    note, error = err.splitlines()
    assert (code, out) == (2, "")
    assert note.startswith("strategy 'ddp' is left out: it is defined twice: in strategies.ddp and in ")
    assert "60000 exceeds" in error


@pytest.mark.parametrize("words", [("--batch", "x"), ("--nonsense",), ("a", "b", "c"), ("--steps",)])
def test_what_the_parser_refuses_has_the_same_exit_code(words, bench, tmp_path):
    code, out, err = bench("run", "smoke", *words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["unknown strategy", "devices 0", "steps --5", "no data"])
def test_the_real_command_says_the_same(case, tmp_path):
    words, expected = CASES[case]
    program = "from bench.data import preparation as p\nfrom bench.data.download import DownloadFailed as D\n"
    program += "def offline(*_, **__): raise D('no network here')\n"
    program += "p.download = offline\nfrom bench.cli import main\nmain()\n"
    start = [sys.executable, "-c", program] if case == "no data" else [sys.executable, "-m", "bench"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert expected in refused((done.returncode, done.stdout, done.stderr), tmp_path)


def a_truncated_archive(folder):
    path = folder / "cifar-10-python.tar.gz"
    path.write_bytes(gzip.compress(bytes(1000))[:-20])
    return f"{path} is damaged or truncated"


def a_label_out_of_range(folder):
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (batches / name).touch()
    first = {"data": np.zeros((10_000, 3072), np.uint8), "labels": [*[9] * 9_999, 10]}
    (batches / "data_batch_1").write_bytes(pickle.dumps(first))
    return (
        f"{batches / 'data_batch_1'} is damaged or no batch of CIFAR-10: label 10 of image 9999 is not between 0 and 9"
    )


@pytest.mark.parametrize("damage", [a_truncated_archive, a_label_out_of_range])
def test_the_real_command_names_damaged_data(damage, tmp_path):
    (tmp_path / "data").mkdir()
    expected = damage(tmp_path / "data")
    words = ("run", "smoke", "--dataset", "cifar10", "--data-root", "data")
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert expected in refused((done.returncode, done.stdout, done.stderr), tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "lines", "words"),
    [
        ("batch = 15", (), "line 5 (batch) and line 7 (devices)", "choose --batch as a multiple of 2"),
        ("batch = 15", ("--batch", "17"), "line 7 (devices)", "choose --batch as a multiple of 2"),
        ("steps = 100000", (), "line 5 (steps)", "--steps 100000 > "),
        ("batch = 10_000_000", (), "line 5 (batch)", "exceeds the"),
        ('baseline = "nosuch"', (), "line 5 (baseline)", "unknown strategy 'nosuch'"),
        (
            "threads_per_device = 5",
            (),
            "line 5 (threads_per_device) and line 7 (devices)",
            "2 devices x 5 threads = 10",
        ),
        (
            'description = """\nbatch = 15\n"""\nbatch = 15',
            (),
            "line 8 (batch) and line 10 (devices)",
            "does not divide",
        ),
    ],
)
def test_a_value_that_is_wrong_only_with_others_is_named_with_its_line(bench, tmp_path, text, options, lines, words):
    head, cells = 'workload = "toy"\ndataset = "synthetic"\nwarmup_steps = 1\n\n', "[[cells]]\ndevices = [2]\n"
    (tmp_path / "m.toml").write_text(f'{head}{text}\n{cells}strategies = ["ddp"]\n')
    code, out, err = bench("run", "m.toml", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"bench: m.toml, {lines}: "), err
    assert words in err
