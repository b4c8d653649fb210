"""The earlier attempts that a repair shows."""

import pytest

from sampling import Context, Message, MultiTurnStrategy, Options, RepairTemplateStrategy, Requirement
from sampling.strategies import History
from sampling.strategies.history import estimated_tokens
from sampling.testing import ScriptedBackend

SYSTEM = Context([Message("system", "be brief")])


def has(letter):
    # The reason has the description in it, so that it is not told twice.
    return Requirement(f"no {letter}", check=lambda text: (letter in text, f"{text} has no {letter}"))


async def asked(strategy, answers, letters="xyz", ctx=SYSTEM):
    """Return the texts that each attempt of one subsample sent. No answer is ever valid."""
    backend = ScriptedBackend(answers)
    await strategy.sample("Q", ctx, backend, [has(letter) for letter in letters])
    return [[message.content for message in request.messages] for request in backend.requests]


def turns(strategy, answers, run, **arguments):
    """Return the texts of the last request of a conversation."""
    return run(asked, strategy(loop_budget=len(answers), template="{reasons}", **arguments), answers, "x")[-1]


class TestMultiTurn:
    def test_all_is_the_default(self, run):
        """S14: every request has the whole conversation."""
        expected = ["be brief", "Q", "a", "- a has no x", "b", "- b has no x"]
        assert expected == turns(MultiTurnStrategy, ["a", "b", "c"], run)
        assert expected == turns(MultiTurnStrategy, ["a", "b", "c"], run, history="all")

    def test_what_is_left_out_by_nothing_is_the_same_as_all(self, run):
        """S14: a limit that is never reached changes nothing."""
        answers = ["a", "b", "c", "d"]
        everything = turns(MultiTurnStrategy, answers, run)
        assert everything == turns(MultiTurnStrategy, answers, run, history=10)
        assert everything == turns(MultiTurnStrategy, answers, run, history=History(max_tokens=1_000))

    def test_only_the_last_turns(self, run):
        """The first question stays, and the turns in between are dropped."""
        last_two = ["be brief", "Q", "b", "- b has no x", "c", "- c has no x"]
        assert last_two == turns(MultiTurnStrategy, ["a", "b", "c", "d"], run, history=2)
        assert ["be brief", "Q", "c", "- c has no x"] == turns(MultiTurnStrategy, ["a", "b", "c", "d"], run, history=1)

    def test_the_prompt_stops_growing(self, run):
        """Its length is bounded at any depth."""
        strategy = MultiTurnStrategy(loop_budget=20, history=3)
        lengths = [len(messages) for messages in run(asked, strategy, [str(n) for n in range(10, 30)])]
        assert [2, 4, 6, 8, *[8] * 16] == lengths

    def test_only_the_best(self, run):
        """The best by merit is kept, and the latest wins a tie."""
        strategy = MultiTurnStrategy(loop_budget=5, history="best", template="{reasons}")
        sent = run(asked, strategy, ["x", "xy", "z", "yz", "-"])
        assert ["be brief", "Q", "x", "- x has no y\n- x has no z"] == sent[1]
        assert ["be brief", "Q", "xy", "- xy has no z"] == sent[2] == sent[3]
        assert ["be brief", "Q", "yz", "- yz has no x"] == sent[4]

    def test_the_oldest_turns_go_when_there_is_no_room(self, run):
        """The user's function counts the tokens. Here a character is a token."""
        answers = ["a" * 10, "b" * 10, "c" * 10, "d"]
        newest = len("be brief") + len("Q") + 10 + len("- cccccccccc has no x")
        one_more = newest + 10 + len("- bbbbbbbbbb has no x")
        for limit, kept in [(newest, "c"), (one_more - 1, "c"), (one_more, "bc"), (10_000, "abc")]:
            history = History(max_tokens=limit, count_tokens=len)
            sent = turns(MultiTurnStrategy, answers, run, history=history)
            assert ["be brief", "Q"] == sent[:2]
            assert [letter * 10 for letter in kept] == sent[2::2]
            assert sum(map(len, sent)) <= limit

    def test_when_not_even_one_answer_has_room_its_reasons_are_told_with_the_question(self, run):
        """The prompt is as short as possible, and roles still alternate."""
        history = History(max_tokens=60, count_tokens=len)
        sent = turns(MultiTurnStrategy, ["a", "b" * 100, "c"], run, history=history)
        assert ["be brief", f"Q\n\n- {'b' * 100} has no x"] == sent

    def test_limits_go_together(self, run):
        """A number of turns and a number of tokens both apply."""
        history = History(2, max_tokens=10_000)
        assert 6 == len(turns(MultiTurnStrategy, ["a", "b", "c", "d"], run, history=history))

    def test_the_parser_the_options_and_the_context_stay(self, run):
        """Dropping turns does not change them."""
        backend = ScriptedBackend(["a", "b", "c"])
        strategy = MultiTurnStrategy(loop_budget=3, history=1)

        async def main():
            return await strategy.sample("Q", SYSTEM, backend, [has("x")], options=Options(seed=3))

        result = run(main)
        assert [3, 4, 5] == [request.options.seed for request in backend.requests]
        assert [3, 5, 5] == [len(one.context) for one in result.slices]
        assert "system" == backend.requests[2].messages[0].role


class TestRepairTemplate:
    TEMPLATE = "{action}:\n{reasons}"

    def restated(self, run, answers, letters="x", template=TEMPLATE, **arguments):
        strategy = RepairTemplateStrategy(loop_budget=len(answers), template=template, **arguments)
        return run(asked, strategy, answers, letters)[-1][-1]

    def test_the_last_is_the_default(self, run):
        """S13: the prompt has the reasons of the answer before."""
        assert "Q:\n- b has no x" == self.restated(run, ["a", "b", "c"])
        assert "Q:\n- b has no x" == self.restated(run, ["a", "b", "c"], history=1)

    def test_more_of_them(self, run):
        """The oldest come first, and a shared reason is listed once."""
        assert "Q:\n- a has no x\n- b has no x" == self.restated(run, ["a", "b", "c"], history="all")
        assert "Q:\n- b has no x\n- c has no x" == self.restated(run, ["a", "b", "c", "d"], history=2)
        assert "Q:\n- a has no x" == self.restated(run, ["a", "a", "a", "d"], history="all")

    def test_the_best_and_its_text(self, run):
        """A template may contain the answer."""
        template = "{action}\nMend this: {answer}\n{reasons}"
        sent = self.restated(run, ["x{reasons}", "-", "d"], "xy", template, history="best")
        assert "Q\nMend this: x{reasons}\n- x{reasons} has no y" == sent

    def test_the_oldest_reasons_go_when_there_is_no_room(self, run):
        """The reasons of the newest answer are always sent."""
        answers = ["a", "b", "c", "d"]
        newest = len("be brief") + len("Q:\n- c has no x")
        one_more = newest + len("\n- b has no x")
        for limit, expected in [(1, "c"), (one_more - 1, "c"), (one_more, "bc"), (1_000, "abc")]:
            sent = self.restated(run, answers, history=History(max_tokens=limit, count_tokens=len))
            assert "\n".join(["Q:", *(f"- {letter} has no x" for letter in expected)]) == sent


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("a" * 400, 100)])
def test_a_token_is_guessed_to_be_four_characters(text, tokens):
    """The estimate rounds up."""
    assert tokens == estimated_tokens(text)


def test_a_class_may_set_its_own():
    """A class attribute sets the default, as for all settings."""

    class Forgetful(MultiTurnStrategy):
        history = History(1)

    assert 1 == Forgetful().history.keep
    assert "best" == Forgetful(history="best").history.keep
