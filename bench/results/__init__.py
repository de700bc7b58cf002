"""What a results folder says: reading, statistics, verdicts. Nothing in here imports torch."""
