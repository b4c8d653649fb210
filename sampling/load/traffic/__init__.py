"""
The load generator.

Schedules arrivals, sends them in open and closed loops, in one process or several, and records the outcomes.
Also has the HTTP workload and the monitor for a blocked event loop. Import from `sampling.load`.
"""
