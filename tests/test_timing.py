"""The timers against a clock that is moved by hand: what they add up, and in which order they wait."""

import pytest

from bench.worker.timing import BreakdownTimer, ClockTimer, EventTimer

SECOND = 1_000_000_000


class Bench:
    """A clock that moves only when told to, and a record of everything that a timer calls."""

    def __init__(self):
        self.now = 5 * SECOND
        self.calls = []

    def synchronize(self):
        self.calls.append("synchronize")

    def barrier(self):
        self.calls.append("barrier")

    def clock(self):
        self.calls.append("clock")
        return self.now

    def event(self):
        return Event(self)

    def work(self, seconds):
        self.now += int(seconds * SECOND)


class Event:
    """Stands in for torch.cuda.Event: the time it was recorded at, readable only after a synchronize."""

    def __init__(self, bench):
        self.bench = bench

    def record(self):
        self.bench.calls.append("record")
        self.place = len(self.bench.calls)
        self.at = self.bench.now

    def elapsed_time(self, later):
        assert "synchronize" in self.bench.calls[later.place :], "read before the device was done"
        return (later.at - self.at) / 1_000_000


def two_steps(timer, bench):
    """Step 1: wait 1 s, work 3 s, apply 0.5 s. Step 2: wait 2 s, work 4 s, apply 0.25 s. Then 0.25 s on the device."""
    timer.start()
    for wait, work, apply in ((1, 3, 0.5), (2, 4, 0.25)):
        bench.work(wait)
        timer.data_ready()
        bench.work(work)
        timer.gradients_ready()
        bench.work(apply)
        timer.step_done()
    bench.work(0.25)
    return timer.stop()


def make(kind, bench):
    waits = (bench.synchronize, bench.barrier)
    if kind is EventTimer:
        return EventTimer(*waits, bench.event, clock=bench.clock)
    return kind(*waits, clock=bench.clock)


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("kind", [ClockTimer, EventTimer])
def test_headline_timers_add_up_steps_waits_and_the_whole_region(kind, bench):
    timing = two_steps(make(kind, bench), bench)
    assert timing.total == pytest.approx(11.0)
    assert timing.steps == pytest.approx([4.5, 6.25])
    assert timing.data_wait == pytest.approx([1.0, 2.0])
    assert timing.forward_backward is None
    assert timing.apply is None


def test_breakdown_timer_separates_the_phases_of_a_step(bench):
    timing = two_steps(make(BreakdownTimer, bench), bench)
    assert timing.total == pytest.approx(10.75)
    assert timing.steps == pytest.approx([4.5, 6.25])
    assert timing.data_wait == pytest.approx([1.0, 2.0])
    assert timing.forward_backward == pytest.approx([3.0, 4.0])
    assert timing.apply == pytest.approx([0.5, 0.25])
    parts = zip(timing.data_wait, timing.forward_backward, timing.apply, strict=True)
    for phases, step in zip(parts, timing.steps, strict=True):
        assert sum(phases) == pytest.approx(step)


def test_clock_timer_waits_only_at_both_ends(bench):
    two_steps(make(ClockTimer, bench), bench)
    steps = ["clock"] * 4
    assert bench.calls == ["synchronize", "barrier", "clock", *steps, "synchronize", "clock"]


def test_event_timer_reads_the_clock_twice_and_records_between(bench):
    two_steps(make(EventTimer, bench), bench)
    steps = ["record"] * 4
    assert bench.calls == ["synchronize", "barrier", "clock", "record", *steps, "synchronize", "clock"]


def test_breakdown_timer_synchronizes_before_every_mark(bench):
    two_steps(make(BreakdownTimer, bench), bench)
    marks = ["synchronize", "clock"] * 7
    assert bench.calls == ["synchronize", "barrier", *marks]


@pytest.mark.parametrize("kind", [ClockTimer, EventTimer, BreakdownTimer])
def test_no_step_at_all_is_an_empty_timing(kind, bench):
    timer = make(kind, bench)
    timer.start()
    timing = timer.stop()
    assert (timing.total, timing.steps, timing.data_wait) == (0.0, [], [])


def test_slow_synchronize_at_the_end_counts_and_one_at_the_start_does_not(bench):
    def slow():
        bench.work(7)

    timer = ClockTimer(slow, bench.barrier, clock=bench.clock)
    timer.start()
    timer.data_ready()
    timer.step_done()
    assert timer.stop().total == pytest.approx(7.0)
