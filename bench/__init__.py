"""The benchmark harness: command line, matrix, launch, worker, timing, results, statistics, charts, report."""

__version__ = "0.1.0"
