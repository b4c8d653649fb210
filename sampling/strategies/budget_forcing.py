"""Make a model think for as long as its budget allows."""

from collections.abc import Mapping
from typing import Any, Unpack

import attrs

from sampling._arguments import check_instance, check_int, check_str
from sampling._engine.scope import count_request
from sampling._text import estimate_tokens
from sampling.backends.layers._layer import Layer, Receive, UsageMeter, call_backend, forget_text, is_restartable
from sampling.messages import Generation, Message, Options, Request
from sampling.protocols import BackendLike
from sampling.strategy import BaseSamplingStrategy, StrategySettings
from sampling.usage import NO_USAGE, Usage

__all__ = ["BudgetForcingStrategy", "Thinking"]


@attrs.frozen(kw_only=True)
class Thinking:
    """The thinking budget, and the text around the thoughts."""

    tokens: int = 1024
    """The thinking budget. Thinking continues until it is spent, and stops then. With 0, the thoughts are empty."""

    most_waits: int = 4
    """
    The maximum number of extensions. A model with nothing to add would repeat itself.

    So an attempt sends at most `most_waits + 2` requests: the thoughts, the extensions and the answer.
    """

    opening: str = "<think>\n"
    closing: str = "\n</think>\n\n"
    """Marks the end of the thoughts. Where the model writes it too early, `wait` replaces it."""

    wait: str = "\nWait,"
    """Replaces the end of the thoughts, so that the model continues from there."""

    answer_suffix: str = ""
    r"""
    The beginning of the answer, such as "The final answer is \boxed{".

    It follows the thoughts in the prompt, the model continues it, and it is part of the text of the answer.
    """

    continuing: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """
    Options that make a server continue the last message instead of answering it.

    For vLLM: {"continue_final_message": True, "add_generation_prompt": False}. llama.cpp needs none.
    """

    def __attrs_post_init__(self) -> None:
        check_int("tokens", self.tokens, least=0)
        check_int("most_waits", self.most_waits, least=0)
        check_str("opening", self.opening)
        check_str("closing", self.closing, empty=False)
        check_str("wait", self.wait, empty=False)
        check_str("answer_suffix", self.answer_suffix)
        Options(extra=self.continuing)


class BudgetForcingStrategy(BaseSamplingStrategy):
    """
    Make the model spend its thinking budget, then answer.

    Use it when a reasoning model stops thinking too early, or too late.
    Thoughts that end early are extended with `Wait,`. Thoughts that exceed the budget are cut off.
    It works with every backend that can continue a text:
    the thoughts so far are sent as the last message, with the role "assistant".

    One attempt takes several requests. All of them count against the budget, and their usage is on the slice.
    The text is the answer alone. The thoughts are in `generation.reasoning`, not in the conversation.
    The answer is generated with the caller's options, unchanged. Thinking has its own token limit.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    thinking: Thinking = Thinking()

    def __init__(self, thinking: Thinking | int | None = None, **settings: Unpack[StrategySettings]) -> None:
        """
        Set the thinking and the settings of `BaseSamplingStrategy`.

        An int sets only the tokens of the thinking.
        """
        if isinstance(thinking, Thinking):
            self.thinking = thinking
        elif thinking is not None:
            self.thinking = attrs.evolve(self.thinking, tokens=check_int("thinking", thinking, least=0))
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_instance("thinking", self.thinking, Thinking, "a Thinking, or an int of tokens")

    def wrap_backend(self, backend: BackendLike) -> BackendLike:
        """Wrap the backend in a layer that forces the thinking."""
        return _ForcedThinking(backend, self.thinking)


class _ForcedThinking(Layer):
    """A layer that requests thoughts, then the answer."""

    def __init__(self, backend: BackendLike, thinking: Thinking) -> None:
        super().__init__(backend)
        self._thinking = thinking

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        thoughts = _Thoughts(self._thinking, request)
        while (piece := thoughts.next_request()) is not None:
            thoughts.add(await self._continue(piece, thoughts, None))
        begun = self._thinking.answer_suffix
        if begun and receive is not None:
            receive(begun)
            receive = _AfterPrefix(receive, begun)
        answer = await self._continue(thoughts.answering_request(), thoughts, receive)
        usage, reasoning = thoughts.used + answer.usage, thoughts.text or answer.reasoning
        return attrs.evolve(answer, text=begun + answer.text, usage=usage, reasoning=reasoning)

    async def _continue(self, request: Request, thoughts: "_Thoughts", receive: Receive | None) -> Generation:
        # The engine has counted the first request of the attempt.
        if thoughts.requests:
            count_request()
        thoughts.requests += 1
        with UsageMeter(thoughts.used):
            return await call_backend(self.inner[0], request, receive)


@attrs.define
class _AfterPrefix:
    """A receiver of the text after a prefix. If a layer restarts, only its own text is taken back."""

    _receive: Receive
    _prefix: str

    @property
    def restartable(self) -> bool:
        return is_restartable(self._receive)

    def __call__(self, piece: str) -> None:
        self._receive(piece)

    def restart(self) -> None:
        forget_text(self._receive)
        self._receive(self._prefix)


class _Thoughts:
    """The growing thoughts of one attempt, and their usage."""

    def __init__(self, thinking: Thinking, request: Request) -> None:
        self._thinking = thinking
        self._request = request
        # Without whitespace, because a model may put more or less of it around the mark.
        self._end = thinking.closing.strip() or thinking.closing
        self._left = thinking.tokens
        self._requests_left = thinking.most_waits + 1
        self._wants_to_stop = False
        self._text = ""
        self.used: Usage = NO_USAGE
        self.requests = 0

    @property
    def text(self) -> str:
        """The thoughts so far."""
        return self._text.strip()

    def next_request(self) -> Request | None:
        """Return the request for more thoughts, or None if done."""
        # A server may cut the thoughts off early, too, or send none at all, so all requests are counted.
        if self._left <= 0 or not self._requests_left:
            return None
        self._requests_left -= 1
        if self._wants_to_stop:
            self._text += self._thinking.wait
        # The caller's schema and stop words are for the answer, not for the thoughts.
        options = attrs.evolve(self._request.options, max_tokens=self._left, stop=(self._end,), schema=None)
        return self._continuing(self._thinking.opening + self._text, options)

    def answering_request(self) -> Request:
        """Return the request for the answer."""
        thinking = self._thinking
        thoughts = thinking.opening + self._text.rstrip() + thinking.closing
        return self._continuing(thoughts + thinking.answer_suffix, self._request.options)

    def add(self, piece: Generation) -> None:
        """Append generated thoughts and record their usage."""
        # A backend that ignores stop words has already begun the answer. Drop it: a later request generates it.
        self._text += piece.text.partition(self._end)[0]
        # At least 1, so that empty pieces of a backend without usage can't go on forever.
        self._left -= piece.usage.output_tokens or max(1, estimate_tokens(len(piece.text)))
        # At its token limit a model was cut off. With any other reason it ended the thoughts itself.
        self._wants_to_stop = piece.finish_reason != "length"
        self.used += piece.usage

    def _continuing(self, text: str, options: Options) -> Request:
        if self._thinking.continuing:
            options = options.overlaid(Options(extra=self._thinking.continuing))
        return attrs.evolve(
            self._request, messages=(*self._request.messages, Message("assistant", text)), options=options
        )
