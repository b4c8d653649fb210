"""Every strategy takes the settings of the base class, and suggests a keyword for one that it does not take."""

import inspect

import pytest

from sampling import Diverse, Hooks, Requirement, strategies
from sampling.strategies import (
    BestOfNStrategy,
    BudgetForcingStrategy,
    EscalationStrategy,
    HedgedSamplingStrategy,
    MajorityVotingStrategy,
    MBRStrategy,
    MultiTurnStrategy,
    RepairTemplateStrategy,
)
from sampling.strategy import BaseSamplingStrategy, StrategySettings
from sampling.testing import ScriptedBackend

SETTINGS = {
    "loop_budget": 3,
    "concurrency_budget": 2,
    "requirements": (Requirement("is short", check=lambda text: len(text) < 9),),
    "hooks": Hooks(),
    "deterministic": True,
    "check_timeout_s": 1.5,
    "max_context_chars": 1_000,
    "accept_incomplete": True,
    "variation": Diverse(temperatures=(0.2, 1.0)),
    "state_requirements": True,
}

EXPORTED = [getattr(strategies, name) for name in strategies.__all__]
STRATEGIES = [
    BaseSamplingStrategy,
    *(one for one in EXPORTED if inspect.isclass(one) and issubclass(one, BaseSamplingStrategy)),
]

MISSPELT = [
    (BestOfNStrategy, "enogh", "enough"),
    (BudgetForcingStrategy, "thinkin", "thinking"),
    (EscalationStrategy, "patiense", "patience"),
    (EscalationStrategy, "cary", "carry"),
    (HedgedSamplingStrategy, "quantil", "quantile"),
    (HedgedSamplingStrategy, "typical", "typical_s"),
    (MBRStrategy, "similarty", "similarity"),
    (MBRStrategy, "relaxaton", "relaxation"),
    (MajorityVotingStrategy, "certanty", "certainty"),
    (MajorityVotingStrategy, "early_stopping", "early_stop"),
    (MultiTurnStrategy, "templat", "template"),
    (RepairTemplateStrategy, "histroy", "history"),
]


def make(strategy, **settings):
    """Construct a strategy with the least that it needs besides these settings."""
    return strategy([ScriptedBackend(["a"])], **settings) if strategy is EscalationStrategy else strategy(**settings)


def test_the_table_has_every_setting():
    """A new setting must be added to the tests below."""
    assert set(StrategySettings.__annotations__) == set(SETTINGS)


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    def test_takes_all_settings_together(self, strategy):
        """All settings of the base class can be given at once."""
        made = make(strategy, **SETTINGS)
        assert {name: getattr(made, name) for name in SETTINGS} == SETTINGS

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_takes_each_setting(self, strategy, setting):
        """The value that was given replaces the default of the class."""
        assert SETTINGS[setting] == getattr(make(strategy, **{setting: SETTINGS[setting]}), setting)

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_keeps_the_default_for_none(self, strategy, setting):
        """None stands for the default."""
        default, made = make(strategy), make(strategy, **{setting: None})
        if setting == "hooks":
            assert list(default.hooks) == list(made.hooks) == []
        else:
            assert getattr(default, setting) == getattr(made, setting)

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("depth", "loop_budget"),
            ("breadth", "concurrency_budget"),
            ("loop_buget", "loop_budget"),
            ("determinstic", "deterministic"),
        ],
    )
    def test_suggests_the_setting_that_was_meant(self, strategy, given, meant):
        """A synonym or a misspelt setting is a TypeError that names the right one."""
        with pytest.raises(TypeError) as caught:
            make(strategy, **{given: 3})
        expected = f"{strategy.__name__}() got an unexpected keyword argument {given!r}. Did you mean {meant!r}?"
        assert expected == str(caught.value)

    def test_lists_its_keywords_where_none_is_close(self, strategy):
        """Without a similar keyword, the error lists all of them."""
        with pytest.raises(TypeError, match=r"'zzz'\. It takes .*\bloop_budget\b"):
            make(strategy, zzz=3)

    def test_says_when_to_use_it_and_what_breadth_costs(self, strategy):
        """S18: the docstring states the cost of breadth, or points to the base class, which does."""
        text = inspect.getdoc(strategy)
        if strategy is BaseSamplingStrategy:
            assert all(words in text for words in ("requests", "rate limits", "deterministic=True"))
        else:
            assert "Use it " in text
            assert "See `BaseSamplingStrategy` for the cost of breadth." in text


@pytest.mark.parametrize(("strategy", "given", "meant"), MISSPELT)
def test_suggests_its_own_keyword(strategy, given, meant):
    """A misspelt keyword of the strategy itself is a TypeError that names the right one."""
    with pytest.raises(TypeError) as caught:
        make(strategy, **{given: 1})
    expected = f"{strategy.__name__}() got an unexpected keyword argument {given!r}. Did you mean {meant!r}?"
    assert expected == str(caught.value)


def test_every_strategy_with_keywords_of_its_own_is_in_the_table():
    """A new strategy must be added to the misspelt keywords."""
    with_own = {one for one in STRATEGIES if "__init__" in vars(one)} - {BaseSamplingStrategy}
    assert with_own == {strategy for strategy, _, _ in MISSPELT}
