"""
Run a fan-out over the batch API of a provider, at half the price.

Needs the extra `openai` or `anthropic`, as the backend does.
"""

from sampling.fanout.batch._engine import BatchEngine
from sampling.fanout.batch._settings import PRICE_FACTOR, BatchProgress

__all__ = ["PRICE_FACTOR", "BatchEngine", "BatchProgress"]
