"""What was recognised, measured: errors, intervals, tests, tables."""
