"""The summary of some rows as dictionaries, by what tells its cells apart."""

import pandas as pd
from generated import table

from bench.results.columns import SUMMARY_COLUMNS, names
from bench.results.summary import summarise


def summary_of(rows, **options):
    """The summary by (strategy, devices, precision, scaling, role), as dictionaries with None for blanks."""
    frame = summarise(table(rows), **options)
    assert list(frame.columns) == names(SUMMARY_COLUMNS)
    records = [{k: None if pd.isna(v) else v for k, v in record.items()} for record in frame.to_dict("records")]
    keys = [tuple(r[k] for k in ("strategy", "devices", "precision", "scaling", "role")) for r in records]
    return dict(zip(keys, records, strict=True))


def key(strategy, devices, precision="fp32", scaling="strong", role="measure"):
    return (strategy, devices, precision, scaling, role)
