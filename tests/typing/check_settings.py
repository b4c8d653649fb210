"""
Keyword arguments of strategies as type checkers see them. Mypy and pyright check this file, nothing runs it.

Each ignore comment marks an expected error: both checkers complain if there is none.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from sampling import (
    BaseSamplingStrategy,
    BestOfNStrategy,
    BudgetForcingStrategy,
    EscalationStrategy,
    HedgedSamplingStrategy,
    Hooks,
    MajorityVotingStrategy,
    MBRStrategy,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)


def every_strategy_takes_the_settings_of_the_base() -> list[BaseSamplingStrategy]:
    return [
        RejectionSamplingStrategy(
            loop_budget=3,
            concurrency_budget=2,
            requirements=["is polite"],
            hooks=Hooks(),
            deterministic=True,
            check_timeout_s=1.5,
            max_context_chars=1_000,
            variation=lambda plan, subsample, attempt: plan,
        ),
        RepairTemplateStrategy(loop_budget=3),
        MultiTurnStrategy(loop_budget=3),
        MajorityVotingStrategy(loop_budget=3),
        MBRStrategy(loop_budget=3),
        BestOfNStrategy(loop_budget=3),
        EscalationStrategy([], loop_budget=3),
        BudgetForcingStrategy(loop_budget=3),
        HedgedSamplingStrategy(loop_budget=3),
    ]


def a_keyword_that_no_strategy_takes_is_an_error() -> list[BaseSamplingStrategy]:
    return [
        RejectionSamplingStrategy(depth=3),  # type: ignore[call-arg]
        RepairTemplateStrategy(depth=3),  # type: ignore[call-arg]
        MultiTurnStrategy(depth=3),  # type: ignore[call-arg]
        MajorityVotingStrategy(depth=3),  # type: ignore[call-arg]
        MBRStrategy(depth=3),  # type: ignore[call-arg]
        BestOfNStrategy(depth=3),  # type: ignore[call-arg]
        EscalationStrategy([], depth=3),  # type: ignore[call-arg]
        BudgetForcingStrategy(depth=3),  # type: ignore[call-arg]
        HedgedSamplingStrategy(depth=3),  # type: ignore[call-arg]
    ]


def a_value_of_the_wrong_type_is_an_error() -> BaseSamplingStrategy:
    return MultiTurnStrategy(loop_budget="3")  # type: ignore[arg-type]
