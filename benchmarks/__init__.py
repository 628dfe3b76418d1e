"""Speed beside others: `python -m benchmarks` prints one table of ratios, measured in one run."""
