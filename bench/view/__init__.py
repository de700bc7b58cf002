"""What a person sees: progress, table, charts, report, exports, lists."""
