"""
Hooks for logging, tracing, metrics and progress displays.

Import those that need an extra from their own module: `from sampling.telemetry.call_progress import progress`.
"""

from sampling.telemetry.logging import logging_hooks

__all__ = ["logging_hooks"]
