"""One table for all columns: name, type, unit and meaning of everything a campaign writes as CSV.

The CSV headers, the checks before an append, the typed reading, `bench list columns` and `results/README.md`
are all derived from here, so they cannot disagree. A value that does not exist is blank, never NaN or inf.
"""

from dataclasses import dataclass
from typing import Any

from bench.factors import BY_NAME, FACTOR_NAMES, STATUSES

SCHEMA_VERSION = "1"


@dataclass(frozen=True)
class Column:
    """One column. `kind` is `str`, `int`, `float` or `bool` (written `true` or `false`).

    `added` columns came after the first files of this schema version: where a file lacks one, it reads as `otherwise`,
    blank unless stated. `formerly` is the name that a column had in such files.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    added: bool = False
    otherwise: Any = None
    formerly: str = ""


def _factor(name: str, *, added: bool = False) -> Column:
    factor = BY_NAME[name]
    return Column(name, factor.kind, factor.unit, factor.meaning, added, factor.default if added else None)


def _columns(*rows: tuple[str, str, str, str] | Column | str) -> tuple[Column, ...]:
    """A table of columns. A plain name is a factor; `*` stands for all others, which came later."""
    named = {row for row in rows if isinstance(row, str)}
    found: list[Column] = []
    for row in rows:
        if row == "*":
            found += [_factor(name, added=True) for name in FACTOR_NAMES if name not in named]
        elif isinstance(row, str):
            found.append(_factor(row))
        else:
            found.append(row if isinstance(row, Column) else Column(*row))
    return tuple(found)


RUN_COLUMNS = _columns(
    ("schema_version", "str", "", "version of this table"),
    ("campaign_id", "str", "", "one matrix measured on one machine"),
    ("run_id", "str", "", "one cell measured once, in fresh processes; with --epochs N its N rows share it"),
    ("block", "int", "", "which repeat of the whole matrix, from 0"),
    ("order_in_block", "int", "", "position in the block's random order, from 0"),
    Column(
        "cohort",
        "int",
        "",
        "runs of a block that were measured together, from 0; each is compared with the cohort's own baseline",
        added=True,
    ),
    Column("cohort_reason", "str", "", "why the run is not in the block's first cohort, or took no turns", added=True),
    Column("turns", "int", "", "turns in which its timed steps alternated with those of its cohort", added=True),
    ("attempt", "int", "", "1, or higher where the run was measured again; the earlier row stays"),
    ("utc_start", "str", "UTC", "when the run's processes were started, ISO 8601"),
    ("environment_id", "str", "", "hash of the identity facts in environment.json"),
    ("git_commit", "str", "", "commit of the suite, blank when installed from a wheel"),
    ("git_dirty", "bool", "", "whether the suite's working tree differed from that commit"),
    "role",
    "strategy",
    "devices",
    ("processes", "int", "", "processes started"),
    ("replicas", "int", "", "full copies of the model"),
    "device_kind",
    ("device_name", "str", "", "model of the processor or GPU"),
    ("backend", "str", "", "torch.distributed backend, blank for one process without a group"),
    "threads_per_device",
    "workload",
    "dataset",
    ("dataset_fingerprint", "str", "", "hash of the samples that were read"),
    "data_pipeline",
    "precision",
    "memory_format",
    "compile",
    "variant",
    Column("same_work", "bool", "", "whether the losses should be the baseline's, up to rounding", added=True),
    Column("plain_twin", "str", "", "the strategy that this one is at another precision of", added=True),
    Column(
        "tuned_twin",
        "str",
        "",
        "the strategy that is this one as an expert would set it up; its own name if it is that",
        added=True,
    ),
    Column(
        "start",
        "str",
        "",
        "warm: ranks forked from a process with torch loaded; cold: fresh interpreters",
        added=True,
    ),
    Column(
        "cores",
        "str",
        "",
        "cores that each rank was bound to, by rank with ';' between; blank: not bound",
        added=True,
    ),
    ("details", "str", "", "what the strategy actually used, such as the BatchNorm layer or the split point"),
    "scaling",
    "batch_global",
    Column("batch_per_part", "int", "samples", "samples per optimizer step and part", formerly="batch_per_replica"),
    "accumulate",
    "*",
    ("seed", "int", "", "seed of weights, order and augmentation"),
    ("epoch", "int", "", "which epoch of the run this row is, from 1"),
    ("status", "str", "", "one of " + ", ".join(STATUSES)),
    ("reason", "str", "", "why the status is not ok, in the failing rank's own words"),
    ("exit_code", "int", "", "of the failing rank: positive its exit code, negative the signal that ended it"),
    ("warnings", "str", "", "what a careful reader should know, separated by ' | '"),
    Column(
        "repeated_for", "str", "", "what disturbed the run, where it is measured again; blank otherwise", added=True
    ),
    ("warmup_steps", "int", "steps", "untimed steps before the model goes back to its start"),
    ("timed_steps", "int", "steps", "optimizer steps inside the timed region"),
    ("timed_samples", "int", "samples", "samples over all parts inside the timed region"),
    ("epoch_samples", "int", "samples", "size of the training set"),
    ("dropped_samples", "int", "samples", "rest of a whole epoch that fills no global batch; blank for part of one"),
    ("epoch_measured", "bool", "", "true when every full batch of the epoch was run, false for part of it"),
    ("timed_seconds", "float", "s", "length of the timed region: the sum over its turns of the maximum over ranks"),
    ("timed_seconds_min_rank", "float", "s", "length of the timed region, minimum over ranks"),
    ("epoch_seconds", "float", "s", "epoch_samples / samples_per_second"),
    ("samples_per_second", "float", "1/s", "timed_samples / timed_seconds"),
    ("step_seconds_median", "float", "s", "median of the steps, each the maximum over ranks"),
    ("step_seconds_p95", "float", "s", "95th percentile of the steps, each the maximum over ranks"),
    ("step_seconds_cov", "float", "", "standard deviation / mean of the steps, each the maximum over ranks"),
    ("data_wait_seconds", "float", "s", "time the timed steps waited for their batches, maximum over ranks"),
    ("forward_backward_seconds", "float", "s", "breakdown runs only: forward and backward, maximum over ranks"),
    ("optimizer_seconds", "float", "s", "breakdown runs only: optimizer, maximum over ranks"),
    ("exposed_comm_seconds", "float", "s", "breakdown runs only: forward and backward, less the same without exchange"),
    ("exposed_comm_trace_seconds", "float", "s", "breakdown runs only: the same from the profiler's trace, by overlap"),
    Column("comm_trace_seconds", "float", "s", "breakdown runs only: all collectives in that trace", added=True),
    ("launch_seconds", "float", "s", "from the request for the run to its ranks being ready, maximum over ranks"),
    ("init_seconds", "float", "s", "process-group start, maximum over ranks"),
    ("build_seconds", "float", "s", "data on the device, model, wrap, optimizer; maximum over ranks"),
    ("compile_seconds", "float", "s", "first warm-up step of a compiled run, maximum over ranks"),
    ("warmup_seconds", "float", "s", "warm-up steps and restore, maximum over ranks"),
    ("eval_seconds", "float", "s", "exact evaluation after a whole epoch, maximum over ranks"),
    ("flops_per_sample", "float", "FLOP", "counted once a workload: forward and backward, multiply and add apart"),
    ("achieved_flops_per_second", "float", "FLOP/s", "flops_per_sample * samples_per_second, over all devices"),
    ("peak_flops_fraction", "float", "", "achieved / known dense peak of the devices; blank when not known"),
    (
        "peak_memory_bytes_max",
        "int",
        "B",
        "peak allocated in the timed region, resident data included, the fullest device; blank on CPU",
    ),
    ("peak_memory_bytes_min", "int", "B", "peak allocated, the emptiest device; blank on CPU"),
    ("host_peak_rss_bytes", "int", "B", "peak resident memory, summed over ranks"),
    Column(
        "host_memory_bytes",
        "int",
        "B",
        "memory of all ranks after the last epoch, what they share with anybody counted once",
        added=True,
        formerly="host_pss_bytes",
    ),
    Column("gradient_bytes", "int", "B", "gradients of one replica: what a step has to exchange", added=True),
    Column(
        "probe_flops_per_second",
        "float",
        "FLOP/s",
        "baseline's runs: fixed matrix products on one device before the first timed step, median",
        added=True,
    ),
    Column(
        "probe_bytes_per_second",
        "float",
        "B/s",
        "baseline's runs: fixed copies in that device's memory, read and written, in turns with them, median",
        added=True,
    ),
    ("loss_first", "float", "", "training loss of the first timed step, mean over parts"),
    ("loss_last", "float", "", "training loss of the last timed step, mean over parts"),
    ("test_accuracy", "float", "", "exact share of the test set, 0 to 1; blank for part of an epoch or synthetic data"),
    (
        "skipped_steps",
        "int",
        "steps",
        "timed steps that the AMP loss scaler skipped, at the scale that warm-up found",
    ),
    Column(
        "optimizer_steps",
        "int",
        "steps",
        "steps that the optimizer took in the timed region, fewest of a rank",
        added=True,
    ),
    Column("update_norm", "float", "", "L2 norm of what the timed steps changed in the parameters, about", added=True),
    Column("changed_tensors", "int", "", "parameters that the timed steps changed", added=True),
    Column("trainable_values", "int", "", "values of the model that training changes", added=True),
    Column(
        "gradient_tensors", "int", "", "parameters that had a gradient in warm-up; blank without warm-up", added=True
    ),
    Column("gradient_names_hash", "str", "", "hash of their names in the bare model", added=True),
    Column("moved_share", "float", "", "share of values that the timed steps changed, least of a rank", added=True),
    Column("end_state", "str", "", "projections of the parameters after the timed region on random signs", added=True),
    Column(
        "rotated_distance",
        "float",
        "",
        "copies in pieces: how far apart a step ends where ranks read each other's parts, relative to the step",
        added=True,
    ),
    Column("rotated_loss", "float", "", "the same of a part's loss, relative to it", added=True),
    ("parameter_hash", "str", "", "hash of the parameters after the timed region, equal over the ranks of a piece"),
    ("gate", "str", "", "passed, or which check failed"),
    ("foreign_cpu_fraction", "float", "", "share of all cores used by other processes during the run, mean"),
    ("load_average_start", "float", "", "1-minute load average of the machine when the run began"),
    ("cpu_frequency_fraction", "float", "", "mean clock / maximum clock during the run; blank when not known"),
    ("gpu_clock_fraction", "float", "", "lowest SM clock / default SM clock during the run"),
    ("gpu_throttle_reasons", "str", "", "throttle bits that were set during the run, by name"),
    ("gpu_foreign_processes", "int", "", "other processes seen on the devices during the run"),
)

STEP_COLUMNS = _columns(
    ("run_id", "str", "", "as in runs.csv"),
    ("rank", "int", "", "as in torch.distributed"),
    ("epoch", "int", "", "from 1"),
    ("step", "int", "", "timed step, from 0"),
    ("seconds", "float", "s", "the whole step, waiting for data included"),
    ("data_wait_seconds", "float", "s", "the part of it spent waiting for the batch"),
    Column("turn", "int", "", "turn in which it was timed, from 0", added=True),
)

SUMMARY_COLUMNS = _columns(
    "strategy",
    "devices",
    "scaling",
    "precision",
    "role",
    "workload",
    "dataset",
    "data_pipeline",
    "memory_format",
    "compile",
    "variant",
    "device_kind",
    ("device_name", "str", "", "as in runs.csv"),
    ("environment_id", "str", "", "as in runs.csv; rows of different machines are never pooled"),
    "threads_per_device",
    "batch_global",
    "accumulate",
    "*",
    ("runs_ok", "int", "", "runs that count"),
    ("runs_failed", "int", "", "runs that failed, unsupported ones not counted"),
    ("epoch_seconds", "float", "s", "median over the ok runs"),
    ("samples_per_second", "float", "1/s", "dataset size / epoch_seconds: median over the ok runs"),
    ("samples_per_second_per_device", "float", "1/s", "samples_per_second / devices"),
    ("baseline", "str", "", "the cell that speedup refers to, as strategy@devices precision"),
    (
        "pairs",
        "int",
        "",
        "blocks, or cohorts of one, in which both the cell and its baseline are ok: the n of the interval",
    ),
    ("speedup", "float", "", "geometric mean over blocks of samples/s / baseline samples/s; above 1 is faster"),
    ("speedup_low", "float", "", "lower end of the 95 % paired t interval on log ratios; blank under 2 pairs"),
    ("speedup_high", "float", "", "upper end of that interval"),
    ("efficiency", "float", "", "speedup / devices"),
    ("p_value", "float", "", "two-sided paired t test of speedup = 1, blank under 2 pairs"),
    ("p_value_holm", "float", "", "the same, adjusted after Holm over all cells that are judged"),
    ("gain_from_precision", "float", "", "samples/s ÷ those of the same devices at the baseline's precision"),
    ("gain_from_devices", "float", "", "samples/s ÷ those of the same strategy and precision on one device"),
    ("compile_pays_after_epochs", "str", "", "compile time / seconds it saves an epoch over compile off, or never"),
    ("cost_devices", "str", "", "COST: fewest devices at which this strategy beats the tuned single device, or never"),
    Column("cost_opponent", "bool", "", "whether this is a tuned single device, which COST refers to", added=True),
    ("step_seconds_cov", "float", "", "median over the ok runs"),
    ("flops_per_sample", "float", "FLOP", "as in runs.csv"),
    ("achieved_flops_per_second", "float", "FLOP/s", "median over the ok runs"),
    ("peak_memory_bytes", "int", "B", "maximum over the ok runs of the fullest device; blank on CPU"),
    ("peak_memory_bytes_min", "int", "B", "minimum over the ok runs of the emptiest device; blank on CPU"),
    ("host_peak_rss_bytes", "int", "B", "maximum over the ok runs, summed over ranks"),
    ("test_accuracy", "float", "", "median over the ok runs of the last epoch's"),
    ("status", "str", "", "ok when any run is ok and none invalid, else the worst status of its runs"),
    ("reason", "str", "", "of the first run that is not ok"),
    ("flags", "str", "", "what a careful reader should know, separated by ' | '"),
    Column(
        "out_of_race_after",
        "int",
        "blocks",
        "with --race: after which it got no more, being surely slower than the fastest; blank: still in the race",
        added=True,
    ),
    Column("flag_keys", "str", "", "what each flag is about, in the same order, separated by ' | '", added=True),
    ("stop_reason", "str", "", "why the campaign took no further blocks"),
)


def names(columns: tuple[Column, ...]) -> list[str]:
    """The header of a CSV file."""
    return [column.name for column in columns]
