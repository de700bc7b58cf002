"""What is said while a campaign runs: plain lines in a log, a bar on a terminal, nothing when quiet."""

import errno
import io

import pytest
from generated import noisy_campaign, write_campaign
from rich.console import Console

from bench.heartbeat import Beat
from bench.run.reporter import duration
from bench.view import progress
from bench.view.finish import finish
from bench.view.progress import Lines, Live, Quiet, make_reporter


def console(*, terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None)


def written(made):
    return made.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (90, "1 min 30 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (3600, "1 h 0 min"),
        (7384, "2 h 3 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations_are_told_in_two_units(seconds, text):
    assert duration(seconds) == text


def a_campaign(reporter):
    with reporter:
        reporter.note("data are ready")
        reporter.plan(2)
        for name in ("single@1 fp32", "ddp@2 fp32"):
            reporter.begin(name, 0, 1)
            reporter.beats(name, [], 3)
            reporter.end(name, "100.0 samples/s, epoch 500 s")


def test_a_log_gets_one_plain_line_a_run():
    log = console()
    a_campaign(Lines(log))
    assert written(log).splitlines() == [
        "data are ready",
        "[1/2] single@1 fp32: 100.0 samples/s, epoch 500 s",
        "[2/2] ddp@2 fp32: 100.0 samples/s, epoch 500 s",
    ]


def test_the_count_grows_when_a_further_block_is_planned():
    log = console()
    reporter = Lines(log)
    for _ in range(2):
        reporter.plan(1)
        reporter.end("ddp@2", "ok")
    assert written(log).splitlines() == ["[1/1] ddp@2: ok", "[2/2] ddp@2: ok"]


@pytest.mark.parametrize("text", ["crashed: [red]x[/red]", "[/]", r"\[/x]", "a :warning: b", "word " * 60 + "end"])
@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_message_is_written_as_it_is_on_one_line(text, kind):
    log = console()
    kind(log).note(text)
    assert written(log) == text + "\n"


def test_quiet_keeps_no_change_of_a_file_to_itself(capsys):
    Quiet().warn("runs.csv: the last line was half written")
    assert capsys.readouterr() == ("", "runs.csv: the last line was half written\n")


def test_quiet_says_nothing(capsys):
    reporter = make_reporter(quiet=True)
    assert type(reporter) is Quiet
    a_campaign(reporter)
    reporter.download(1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("terminal", "kind"), [(True, Live), (False, Lines)])
def test_the_reporter_suits_where_stderr_goes(terminal, kind, monkeypatch):
    asked = []

    def make(*, stderr):
        asked.append(stderr)
        return console(terminal=terminal)

    monkeypatch.setattr(progress, "Console", make)
    assert type(make_reporter(quiet=False)) is kind
    assert asked == [True]


def test_without_a_terminal_everything_goes_to_stderr(capsys):
    a_campaign(make_reporter(quiet=False))
    out, err = capsys.readouterr()
    assert out == ""
    assert "[2/2] ddp@2 fp32" in err


class Closed(io.StringIO):
    """A terminal that has gone away, or the reading end of a pipe."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.tried = 0

    def write(self, text):
        self.tried += 1
        raise self.error

    def flush(self):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), BrokenPipeError(errno.EPIPE, "Broken pipe")]
)
@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_campaign_goes_on_where_nobody_can_be_told(kind, error):
    """rich would end the whole process at a broken pipe."""
    stream = Closed(error)
    reporter = kind(Console(file=stream, force_terminal=kind is Live, width=80))
    a_campaign(reporter)
    reporter.download(1, 2)
    assert stream.tried > 2
    assert reporter._done == 2


@pytest.fixture
def live():
    screen = console(terminal=True)
    with Live(screen) as reporter:
        yield reporter, screen


def shown(reporter):
    """Description, done, total and time left of the campaign's own line."""
    task = reporter._progress.tasks[0]
    return task.description, task.completed, task.total, task.fields["left"]


def shown_runs(reporter):
    """Description, steps done and due, and what it does, of each run that is alive."""
    return [
        (task.description.strip(), task.completed, task.total, task.fields["left"])
        for task in reporter._progress.tasks[1:]
    ]


def test_every_run_that_is_alive_has_a_line_with_its_slowest_ranks_step(live):
    reporter, _ = live
    reporter.plan(4)
    reporter.begin("ddp@2 fp32", 1, 3)
    assert shown(reporter)[:3] == ("runs, block 2/3", 0, 4)
    reporter.begin("single@1 fp32", 1, 3)
    reporter.beats("ddp@2 fp32", [Beat(0, "timed", 9, 2_000), Beat(1, "timed", 7, 1_000)], 20)
    assert shown_runs(reporter) == [("ddp@2 fp32", 7, 20, "timed"), ("single@1 fp32", 0, None, "starting")]
    reporter.waits("ddp@2 fp32", "turn")
    reporter.beats("single@1 fp32", [Beat(0, "timed", 9, 2_000), Beat(1, "warmup", 1, 1_000)], 20)
    assert shown_runs(reporter) == [("ddp@2 fp32", 7, 20, "waits for its turn"), ("single@1 fp32", 0, None, "warmup")]
    reporter.end("ddp@2 fp32", "ok")
    assert [name for name, *_ in shown_runs(reporter)] == ["single@1 fp32"]


def test_the_time_left_is_by_the_speed_so_far(live, monkeypatch):
    reporter, screen = live
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    reporter.plan(4)
    now[0] = 130.0
    reporter.end("single@1", "ok")
    assert shown(reporter)[1:] == (1, 4, "about 1 min 30 s left")
    assert "single@1: ok" in written(screen)


def test_automatic_blocks_are_counted_without_a_total(live):
    reporter, _ = live
    reporter.plan(1)
    reporter.begin("ddp@2", 4, 0)
    assert shown(reporter)[0] == "runs, block 5"


def test_a_download_has_a_bar_of_its_own_until_it_is_complete(live):
    reporter, _ = live
    reporter.download(1_000, 0)
    assert shown(reporter)[:3] == ("downloading data", 1_000, None)
    reporter.download(5_000, 10_000)
    assert shown(reporter)[1:3] == (5_000, 10_000)
    reporter.download(10_000, 10_000)
    assert reporter._progress.tasks == []


def test_a_bar_that_was_closed_opens_again():
    """Data are prepared under the same reporter that later follows the runs."""
    reporter = Live(console(terminal=True))
    for _ in range(2):
        with reporter:
            assert reporter._progress.live.is_started
        assert not reporter._progress.live.is_started


def test_a_campaign_s_exit_code_is_kept_where_nobody_can_be_told(tmp_path, monkeypatch):
    """The table at the end goes to a stdout that is no more."""
    folder = write_campaign(tmp_path / "c", noisy_campaign(seed=0, blocks=2))
    stream = Closed(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    monkeypatch.setattr("sys.stdout", stream)
    finish(folder, exit_code=1, quiet=False, json=True)
    assert stream.tried > 0
    assert (folder / "report.html").exists()
