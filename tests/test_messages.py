"""Conversations, actions and options."""

import pytest

from sampling import Action, Attempt, Context, Message, Options, Request


def turns(count):
    return [Message("user" if n % 2 == 0 else "assistant", f"message {n}") for n in range(count)]


class TestContext:
    def test_add_returns_a_new_one(self):
        """The original context is not changed."""
        a, b = turns(2)
        empty = Context()
        one, two = empty.add(a), empty.add(b)
        assert ((), (a,), (b,)) == (empty.messages, one.messages, two.messages)
        assert (a, b) == one.add(b).messages == Context([a, b]).messages

    def test_a_thousand_turns_are_put_together_once(self):
        """Reading a context goes back only to the last ancestor that was read."""
        context = Context()
        for message in turns(1000):
            context = context.add(message)
            context.messages  # noqa: B018 - as a request would
        assert tuple(turns(1000)) == context.messages
        assert 1000 == len(context)

    def test_a_thousand_turns_that_nobody_read(self):
        """Reading a long chain does not recurse."""
        context = Context(turns(3))
        for message in turns(5000):
            context = context.add(message)
        assert 5003 == len(context) == len(context.messages) == len(list(context))

    def test_an_answered_question_is_a_context(self):
        """An attempt's context has all sent messages and the answer."""
        plan = Attempt(Action("q"), Context(turns(2)))
        context = Context.sent(plan.messages, plan.chars, "a")
        assert (*turns(2), Message("user", "q"), Message("assistant", "a")) == context.messages
        assert 4 == len(context)
        assert sum(len(message.content) for message in context) == context.chars
        assert (*context.messages, Message("user", "more")) == context.add(Message("user", "more")).messages

    def test_equality_is_by_messages(self):
        """Contexts with the same messages are equal, however they were built."""
        by_hand = Context(turns(4))
        grown = Context(turns(2)).add(*turns(4)[2:])
        assert by_hand == grown
        assert hash(by_hand) == hash(grown)
        assert by_hand != Context(turns(3))
        assert by_hand != turns(4)

    def test_an_empty_one_is_true(self):
        """`ctx or Context()` must not replace an empty context."""
        assert Context()

    def test_chars_are_counted(self):
        """Every context knows its number of characters in O(1)."""
        assert 10 == Context([Message("user", "12345")]).add(Message("assistant", "67890")).chars
        assert "Context(1 messages, 5 characters)" == repr(Context([Message("user", "12345")]))


class TestAction:
    def test_with_text_keeps_the_parser(self):
        """A repair changes the prompt, not the parser."""
        assert 3 == Action("a", int).with_text("b").parse("3")
        assert "3" == Action("a").with_text("b").parse("3")


class TestOptions:
    def test_overlaying_nothing_changes_nothing(self):
        """None and empty options change nothing."""
        options = Options(model="m", temperature=0.0, max_tokens=3, seed=0, stop=["x"], extra={"a": 1})
        assert options is options.overlaid(None)
        assert options == options.overlaid(Options())

    def test_zero_is_a_value(self):
        """Temperature 0 overrides, because it is not unset."""
        assert 0.0 == Options(temperature=1.0).overlaid(Options(temperature=0.0)).temperature
        assert 0 == Options(seed=1).overlaid(Options(seed=0)).seed

    def test_extra_can_not_be_changed(self):
        """`extra` is a read-only copy of the caller's dict."""
        given = {"a": 1}
        options = Options(extra=given)
        given["a"] = 2
        assert 1 == options.extra["a"]
        with pytest.raises(TypeError):
            options.extra["a"] = 3


def test_a_request_takes_any_sequence_of_messages():
    """This is convenient in tests of backends."""
    assert tuple(turns(2)) == Request(turns(2)).messages
