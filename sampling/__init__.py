"""Ask a language model deep and wide, check every answer, stop at the first valid one, and account for all of it."""

from sampling.budgets import Budget
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    BadVerdict,
    BudgetExceeded,
    CheckTimeout,
    ContextTooLarge,
    FatalError,
    HookTimeout,
    InsideEventLoop,
    ModelNotFound,
    NoValidAnswer,
    PluginFailed,
    RateLimited,
    SamplingError,
    SelectionFailed,
    Timeout,
    TransientError,
    WrongThread,
)
from sampling.hooks import Event, Hooks, IterationFinished, IterationStarted, LoopFinished, LoopStarted, Repaired
from sampling.identity import Identity, current, report_usage
from sampling.messages import Action, Attempt, Context, Generation, Message, Options, Request
from sampling.protocols import Backend, StreamingBackend
from sampling.requirements import Requirement, Validation, View
from sampling.results import HookFailure, SamplingResult, Slice
from sampling.strategies import MultiTurnStrategy, RejectionSamplingStrategy, RepairTemplateStrategy
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Usage

__all__ = [
    "Action",
    "Attempt",
    "AuthenticationFailed",
    "Backend",
    "BackendError",
    "BadRequest",
    "BadVerdict",
    "BaseSamplingStrategy",
    "Budget",
    "BudgetExceeded",
    "CheckTimeout",
    "Context",
    "ContextTooLarge",
    "Event",
    "FatalError",
    "Generation",
    "HookFailure",
    "HookTimeout",
    "Hooks",
    "Identity",
    "InsideEventLoop",
    "IterationFinished",
    "IterationStarted",
    "LoopFinished",
    "LoopStarted",
    "Message",
    "ModelNotFound",
    "MultiTurnStrategy",
    "NoValidAnswer",
    "Options",
    "PluginFailed",
    "RateLimited",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Repaired",
    "Request",
    "Requirement",
    "SamplingError",
    "SamplingResult",
    "SelectionFailed",
    "Slice",
    "StreamingBackend",
    "Timeout",
    "TransientError",
    "Usage",
    "Validation",
    "View",
    "WrongThread",
    "current",
    "report_usage",
]
