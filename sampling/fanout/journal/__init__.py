"""
The durable record of a fan-out, in one file.

    result = await fan_out(strategy, items, None, backend, journal="run.db")

The same call with the same file resumes the run after a stop, a kill or a power cut.
Items that have an outcome are not sampled again.
"""

from sampling.fanout.journal._export import ExportFormat, export
from sampling.fanout.journal._journal import Journal, JournalSummary
from sampling.fanout.journal._store import JournalStatus, OnChange

__all__ = ["ExportFormat", "Journal", "JournalStatus", "JournalSummary", "OnChange", "export"]
