"""
Ask a language model several times, check every answer, and return the first valid one.

These are the names that most programs need. Everything else is in the module that it belongs to:
`sampling.checks`, `sampling.errors`, `sampling.fanout`, `sampling.load`, `sampling.strategies`, `sampling.telemetry`,
`sampling.testing`, and `sampling.backends` with one package for each provider.
"""

from typing import TYPE_CHECKING, Any

from sampling import errors
from sampling._engine.scope import current, report_usage
from sampling._lazy import lazy_attributes
from sampling.budgets import Budget
from sampling.errors import (
    BackendError,
    BudgetExceeded,
    FatalError,
    MissingExtra,
    NoValidAnswer,
    RateLimited,
    SamplingError,
    Timeout,
    TransientError,
)
from sampling.hooks import (
    Event,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Repaired,
    TextGrown,
)
from sampling.messages import Action, Attempt, Context, Generation, Message, Options, Request
from sampling.parts import Audio, File, Image, Reasoning, Text, ToolCall, ToolResult
from sampling.protocols import Backend, StreamingBackend
from sampling.requirements import Requirement, Validation, View
from sampling.results import SamplingResult, Slice
from sampling.strategy import BaseSamplingStrategy
from sampling.tools import Tool, tool
from sampling.usage import Price, Usage

if TYPE_CHECKING:
    from sampling.backends.anthropic import AnthropicBackend
    from sampling.backends.gemini import GeminiBackend
    from sampling.backends.layers import Cached, Fallback, Limited, Priced, Recorded, Replayed, Retrying, ToolLoop
    from sampling.backends.llama import LlamaBackend
    from sampling.backends.openai import OpenAIBackend
    from sampling.backends.simulated import SimulatedBackend
    from sampling.fanout import FanOutResult, ItemOutcome, fan_out, open_fan_out
    from sampling.fanout.journal import Journal
    from sampling.strategies import (
        BestOfNStrategy,
        BudgetForcingStrategy,
        Diverse,
        EscalationStrategy,
        HedgedSamplingStrategy,
        MajorityVotingStrategy,
        MBRStrategy,
        MultiTurnStrategy,
        RejectionSamplingStrategy,
        RepairTemplateStrategy,
        Tier,
    )

    __version__: str

__all__ = [  # noqa: RUF022 - in groups, for those who read it
    # Questions and answers
    "Action",
    "Attempt",
    "Backend",
    "Context",
    "Generation",
    "Message",
    "Options",
    "Price",
    "Request",
    "Requirement",
    "SamplingResult",
    "Slice",
    "StreamingBackend",
    "Usage",
    "Validation",
    "View",
    # Parts of messages, and tools
    "Audio",
    "File",
    "Image",
    "Reasoning",
    "Text",
    "Tool",
    "ToolCall",
    "ToolResult",
    "tool",
    # Strategies
    "BaseSamplingStrategy",
    "BestOfNStrategy",
    "BudgetForcingStrategy",
    "Diverse",
    "EscalationStrategy",
    "HedgedSamplingStrategy",
    "MBRStrategy",
    "MajorityVotingStrategy",
    "MultiTurnStrategy",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Tier",
    # Backends
    "AnthropicBackend",
    "GeminiBackend",
    "LlamaBackend",
    "OpenAIBackend",
    "SimulatedBackend",
    # Layers
    "Cached",
    "Fallback",
    "Limited",
    "Priced",
    "Recorded",
    "Replayed",
    "Retrying",
    "ToolLoop",
    # Many items
    "FanOutResult",
    "ItemOutcome",
    "Journal",
    "fan_out",
    "open_fan_out",
    # Limits and events
    "Budget",
    "Event",
    "Hooks",
    "IterationFinished",
    "IterationStarted",
    "LoopFinished",
    "LoopStarted",
    "Repaired",
    "TextGrown",
    "current",
    "report_usage",
    # Errors
    "BackendError",
    "BudgetExceeded",
    "FatalError",
    "MissingExtra",
    "NoValidAnswer",
    "RateLimited",
    "SamplingError",
    "Timeout",
    "TransientError",
]

_lazy = lazy_attributes(
    __name__,
    {
        # The rarer errors can be imported from here too, but are listed in their module alone.
        **dict.fromkeys(errors.__all__, "sampling.errors"),
        **dict.fromkeys(
            ("Cached", "Fallback", "Limited", "Priced", "Recorded", "Replayed", "Retrying", "ToolLoop"),
            "sampling.backends.layers",
        ),
        **dict.fromkeys(
            (
                "BestOfNStrategy",
                "BudgetForcingStrategy",
                "Diverse",
                "EscalationStrategy",
                "HedgedSamplingStrategy",
                "MajorityVotingStrategy",
                "MBRStrategy",
                "MultiTurnStrategy",
                "RejectionSamplingStrategy",
                "RepairTemplateStrategy",
                "Tier",
            ),
            "sampling.strategies",
        ),
        **dict.fromkeys(("FanOutResult", "ItemOutcome", "fan_out", "open_fan_out"), "sampling.fanout"),
        "AnthropicBackend": "sampling.backends.anthropic",
        "GeminiBackend": "sampling.backends.gemini",
        "Journal": "sampling.fanout.journal",
        "LlamaBackend": "sampling.backends.llama",
        "OpenAIBackend": "sampling.backends.openai",
        "SimulatedBackend": "sampling.backends.simulated",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Imported here: it takes longer than the rest of this package.
        from importlib.metadata import version  # noqa: PLC0415

        return version("sampling")
    return _lazy(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
