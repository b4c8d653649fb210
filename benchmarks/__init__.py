"""
Benchmarks of the library: `python -m benchmarks`.

Targets are ratios that are measured in one run, so that they depend little on the machine.
"""
