"""
Hooks that come with the library, to watch calls with.

Those that need an extra are imported from their own module: `from sampling.telemetry.progress import progress`.
"""

from sampling.telemetry.logging import logging_hooks

__all__ = ["logging_hooks"]
