"""Keep a model thinking until its thinking budget is spent, and no longer."""

from collections.abc import Mapping
from typing import Any, Unpack

import attrs

from sampling._arguments import check_instance, check_int, check_str
from sampling._engine.scope import count_request
from sampling._text import estimate_tokens
from sampling.backends.layers._layer import NOTHING, Layer, Metered, Receive, ask
from sampling.messages import Generation, Message, Options, Request
from sampling.protocols import BackendLike
from sampling.strategy import BaseSamplingStrategy, StrategySettings
from sampling.usage import Usage

__all__ = ["BudgetForcingStrategy", "Thinking"]


@attrs.frozen(kw_only=True)
class Thinking:
    """How long a model thinks, and the words around its thoughts."""

    tokens: int = 1024
    """How many tokens of thought there are: it is made to go on until they are spent, and stopped when they are."""

    most_waits: int = 4
    """How often it is made to go on: a model that has nothing more to say would repeat itself."""

    opening: str = "<think>\n"
    closing: str = "\n</think>\n\n"
    """What ends the thoughts. The model's own end of thinking is recognised by it, and replaced by `wait`."""

    wait: str = "\nWait,"
    """Put in place of the end of its thoughts, for the model to go on from."""

    continuing: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """
    Options that make a server go on with the last message instead of answering it, where it needs telling:
    for vLLM, {"continue_final_message": True, "add_generation_prompt": False}. llama.cpp needs none.
    """

    def __attrs_post_init__(self) -> None:
        check_int("tokens", self.tokens, least=1)
        check_int("most_waits", self.most_waits, least=0)
        check_str("opening", self.opening)
        check_str("closing", self.closing, empty=False)
        check_str("wait", self.wait, empty=False)
        Options(extra=self.continuing)


class BudgetForcingStrategy(BaseSamplingStrategy):
    """
    Have the model think for as long as its thinking budget lasts, then answer.

    A model that wants to stop thinking early gets `Wait,` put into its mouth, and goes on; one that would think
    for ever is cut off, and answers with what it has. This works with every backend that can go on with a text:
    the thoughts so far are sent as the last message, an assistant's, and the backend continues it.

    One attempt takes several requests; all of them are counted, and what they use is on its slice.
    The answer alone is the text. The thoughts are in `generation.reasoning`, and no part of the conversation.
    The caller's options are what the answer is generated with, unchanged; thinking has a limit of its own.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    thinking: Thinking = Thinking()

    def __init__(self, thinking: Thinking | int | None = None, **settings: Unpack[StrategySettings]) -> None:
        """Take how to think, or just for how many tokens, and what the base takes; None keeps the default."""
        if isinstance(thinking, Thinking):
            self.thinking = thinking
        elif thinking is not None:
            self.thinking = attrs.evolve(self.thinking, tokens=check_int("thinking", thinking, least=1))
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_instance("thinking", self.thinking, Thinking, "a Thinking, or an int of tokens")

    def wrap_backend(self, backend: BackendLike) -> BackendLike:
        """Put a layer that forces the thinking around the backend of the call."""
        return _ForcedThinking(backend, self.thinking)


class _ForcedThinking(Layer):
    """A layer that has a backend think before it answers."""

    def __init__(self, backend: BackendLike, thinking: Thinking) -> None:
        super().__init__(backend)
        self._thinking = thinking

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        thoughts = _Thoughts(self._thinking, request)
        while (piece := thoughts.next_request()) is not None:
            thoughts.add(await self._go_on(piece, thoughts, None))
        answer = await self._go_on(thoughts.answering_request(), thoughts, receive)
        return attrs.evolve(answer, usage=thoughts.used + answer.usage, reasoning=thoughts.text)

    async def _go_on(self, request: Request, thoughts: "_Thoughts", receive: Receive | None) -> Generation:
        if thoughts.requests:
            count_request()
        thoughts.requests += 1
        with Metered(thoughts.used):
            return await ask(self.inner[0], request, receive)


class _Thoughts:
    """The thoughts of one attempt while they grow: what to ask next, and what was used for them."""

    def __init__(self, thinking: Thinking, request: Request) -> None:
        self._thinking = thinking
        self._request = request
        self._end = thinking.closing.strip() or thinking.closing
        self._left = thinking.tokens
        self._waits_left = thinking.most_waits
        self._wants_to_stop = False
        self._text = ""
        self.used: Usage = NOTHING
        self.requests = 0

    @property
    def text(self) -> str:
        """All thoughts so far."""
        return self._text.strip()

    def next_request(self) -> Request | None:
        """Return what to ask for more thoughts; None if there shall be no more."""
        if self._left <= 0:
            return None
        if self._wants_to_stop:
            if not self._waits_left:
                return None
            self._waits_left -= 1
            self._text += self._thinking.wait
        # What the caller wants of an answer, such as a schema or stop words, is not wanted of thoughts.
        options = attrs.evolve(self._request.options, max_tokens=self._left, stop=(self._end,), schema=None)
        return self._continuing(self._thinking.opening + self._text, options)

    def answering_request(self) -> Request:
        """Return what to ask for the answer."""
        return self._continuing(
            self._thinking.opening + self._text.rstrip() + self._thinking.closing, self._request.options
        )

    def add(self, piece: Generation) -> None:
        """Take what was thought."""
        # A backend that knows no stop words has gone on to the answer: that comes later.
        self._text += piece.text.partition(self._end)[0]
        self._left -= piece.usage.output_tokens or max(1, estimate_tokens(len(piece.text)))
        self._wants_to_stop = piece.finish_reason != "length"
        self.used += piece.usage

    def _continuing(self, text: str, options: Options) -> Request:
        if self._thinking.continuing:
            options = options.overlaid(Options(extra=self._thinking.continuing))
        return attrs.evolve(
            self._request, messages=(*self._request.messages, Message("assistant", text)), options=options
        )
