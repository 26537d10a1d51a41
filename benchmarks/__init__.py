"""Fixed workloads, measured as ratios within one run: `python -m benchmarks`, or `./run bench`."""
