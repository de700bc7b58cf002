"""The parent's side of a campaign: prepare, start the ranks of each run, judge, and keep the rows."""
