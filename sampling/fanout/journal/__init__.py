"""
The durable record of a fan-out: one SQLite file a run.

    result = await fan_out(strategy, items, None, backend, journal="run.db")

The same call with the same file goes on where it was stopped, killed, or cut off from power:
what has an outcome is not asked again.
"""

from sampling.fanout.journal._export import export
from sampling.fanout.journal._journal import Journal, JournalSummary

__all__ = ["Journal", "JournalSummary", "export"]
