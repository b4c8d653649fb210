"""Assemble the chunks of a stream into a `Generation`, or raise a typed error."""

import re
from collections.abc import Sequence
from typing import Any, cast

import attrs

from sampling._redaction import Redactor
from sampling.backends._thoughts import ThoughtAssembler, text_of_chunk
from sampling.backends.http._fields import Json, list_of_objects, object_or_none, optional
from sampling.backends.http._streamed import UNKNOWN_FINISH, AnswerText, Plain, StreamedResponse, finish_reason_of
from sampling.backends.openai._thinking import ThinkingSplitter
from sampling.backends.openai._tool_calls import ToolCallAssembler
from sampling.backends.openai._usage import read_timings, read_usage
from sampling.errors import Incomplete, MalformedResponse, ServerError
from sampling.messages import Generation
from sampling.usage import Usage

__all__ = ["StreamedAnswer"]

_NOT_PLAIN = ("tool_calls", "reasoning_details", "thinking_blocks")
"""Fields of a delta that are more than text."""

_FAILED = frozenset({"abort", "error", "insufficient_system_resource"})
"""Values of finish_reason by which OpenRouter, SGLang, DeepSeek and Mistral report a failure."""


_ONLY_TEXT = frozenset({"content", "role"})
"""The fields of most deltas."""


class _Choice:
    """One of the requested choices."""

    __slots__ = (
        "_had_delta",
        "_splitter",
        "finish_reason",
        "finishes_every_chunk",
        "logprobs",
        "reasoning",
        "refusal",
        "text",
        "thoughts",
        "tool_calls",
    )

    def __init__(self, *, split_thinking: bool) -> None:
        self.text = AnswerText()
        self.reasoning = AnswerText()
        self.refusal = AnswerText()
        self.tool_calls = ToolCallAssembler()
        self.thoughts = ThoughtAssembler()
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None
        self.finishes_every_chunk = True
        """True while every chunk had a finish_reason, as with servers that always send one."""

        self._splitter = ThinkingSplitter() if split_thinking else None
        self._had_delta = False

    def take(self, given: Json) -> tuple[str, bool]:
        """Add a chunk, and return its text and whether it had any content."""
        delta = self._delta(given)
        if delta.keys() <= _ONLY_TEXT and given.get("logprobs") is None:
            # The same as below, for most chunks.
            text = delta.get("content") if delta else given.get("text")
            if not text and (text is None or type(text) is str):
                return "", False
            if type(text) is str:
                return self._add_text(text), True
        text, thoughts, refusal = _content(delta)
        if not text and not delta:
            text = optional(given, "text", str) or ""
        reasoning = thoughts or _reasoning(delta)
        calls = list_of_objects(delta, "tool_calls")
        for call in calls:
            self.tool_calls.add(call)
        self.reasoning.add(reasoning)
        self.thoughts.add(delta)
        self.refusal.add(refusal)
        self.logprobs.extend(_logprobs(given, text))
        return self._add_text(text), bool(text or reasoning or refusal or calls)

    def _delta(self, given: Json) -> Json:
        """Return the delta of a chunk. Some servers call it message, and some repeat the whole answer in one."""
        delta = object_or_none(given, "delta")
        if delta:
            self._had_delta = True
            return delta
        message = object_or_none(given, "message") or {}
        content = message.get("content") if self._had_delta else None
        return {} if content and content == str(self.text) else message

    def _add_text(self, text: str) -> str:
        if self._splitter is None or self._splitter.is_done:
            return self.text.add(text)
        reasoning, answer = self._splitter.add(text)
        self.reasoning.add(reasoning)
        return self.text.add(answer)

    def add_texts(self, texts: Sequence[str]) -> str:
        """Add the texts of several chunks, and return what they add to the answer."""
        if self._splitter is None or self._splitter.is_done:
            return self.text.add("".join(texts))
        return "".join([self._add_text(text) for text in texts])

    def finish_text(self) -> str:
        """Return the text that was held back because it might have been a tag."""
        if self._splitter is None or self._splitter.is_done:
            return ""
        reasoning, answer = self._splitter.finish()
        self.reasoning.add(reasoning)
        return self.text.add(answer)


class StreamedAnswer(StreamedResponse):
    """A response of the chat or completions API. Malformed input raises a `BackendError`."""

    # OpenAI pads its chunks, so that their sizes do not reveal their text.
    varying = re.compile(rb'"(obfuscation)": ?"([0-9A-Za-z]+)')

    def __init__(
        self,
        redactor: Redactor,
        *,
        expected_choices: int = 1,
        input_tokens_estimate: int = 0,
        check_ids: bool = True,
        split_thinking: bool = False,
    ) -> None:
        super().__init__(redactor, input_tokens_estimate)
        self._expected_choices = expected_choices
        self._split_thinking = split_thinking
        self._choices: dict[int, _Choice] = {}
        self._ids = _ChunkIds() if check_ids else None
        self._first_chunk: Json | None = None
        self._last_chunk: Json = {}
        self._repeated: Plain | None = None
        """What the last chunk repeated, if it was read without its JSON."""

    @property
    def started(self) -> bool:
        """True once a chunk with a choice has arrived."""
        return bool(self._choices)

    @property
    def finished(self) -> bool:
        """True once every choice has a finish_reason."""
        return self.started and all(choice.finish_reason is not None for choice in self._choices.values())

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        first = self._choices.get(0)
        return "" if first is None else str(first.text)

    @property
    def spent(self) -> Usage:
        """The usage that the server reported, else an estimate of one token per piece."""
        used = super().spent
        if self._expected_choices > 1 and used.output_tokens < self.pieces:
            # llama.cpp reports the tokens of one choice only.
            return attrs.evolve(used, output_tokens=self.pieces)
        return used

    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text of the first choice."""
        if not data.startswith("{") and data.strip() in {"[DONE]", ""}:
            self.done = self.done or "[DONE]" in data
            return ""
        self._repeated = None
        chunk = self._parsed(data)
        choices = list_of_objects(chunk, "choices")
        usage = _usage_of(chunk, choices)
        if usage is not None:
            self._take_usage(usage)
        # OpenRouter may report a problem of its provider after the answer is complete.
        error = _groq_error(chunk) if "x_groq" in chunk else chunk.get("error")
        if error is not None and not self.finished:
            self._fail(error)
        given_id = optional(chunk, "id", str)
        if choices:
            self._take_id(given_id)
        if self._first_chunk is None:
            # Without the choices, because a stream may wait for long, and there may be thousands of them.
            self._first_chunk = chunk.copy()
            self._first_chunk.pop("choices", None)
        self._last_chunk = chunk
        self._model = optional(chunk, "model", str) or self._model
        piece = ""
        for choice in choices:
            piece += self._take_choice(choice)
        return piece

    def plain(self, chunk: Json) -> Plain | None:
        """Return what a chunk adds, if it only adds text or reasoning."""
        choices = list_of_objects(chunk, "choices")
        if len(choices) != 1 or chunk.get("error") is not None:
            return None
        (choice,) = choices
        if choice.get("finish_reason") or choice.get("logprobs") is not None or choice.get("message"):
            return None
        if _usage_of(chunk, choices) is not None:
            return None
        delta = object_or_none(choice, "delta") or {}
        text, thoughts, refusal = _content(delta)
        reasoning = _reasoning(delta)
        if thoughts or refusal or isinstance(delta.get("content"), list) or any(map(delta.get, _NOT_PLAIN)):
            return None
        text = text if delta else optional(choice, "text", str) or ""
        if bool(text) == bool(reasoning):
            return None
        return Plain(text or reasoning, chunk, optional(choice, "index", int) or 0, is_reasoning=bool(reasoning))

    def accepts(self, plain: Plain) -> bool:
        """Return True if the choice continues, and earlier chunks belong to the same answer."""
        if plain is self._repeated:
            return True
        choice = self._choices.get(plain.place)
        return (
            choice is not None
            and choice.finish_reason is None
            and (self._ids is None or self._ids.goes_on(plain.chunk.get("id")))
        )

    def repeat(self, plain: Plain, texts: Sequence[str]) -> str:
        """Add the texts of chunks like this one, and return what they add to the text of the first choice."""
        chunk, choice = plain.chunk, self._choices[plain.place]
        if plain is not self._repeated:
            self._repeated = plain
            self._take_id(chunk.get("id"))
            self._last_chunk = chunk
            self._model = chunk.get("model") or self._model
        self.pieces += len(texts)
        if plain.is_reasoning:
            choice.thoughts.add(chunk["choices"][0].get("delta") or {})
            choice.reasoning.add("".join(texts))
            return ""
        piece = choice.add_texts(texts)
        return piece if plain.place == 0 else ""

    def finish(self) -> str:
        """Return the text that was held back because it might have been a tag."""
        held = {index: choice.finish_text() for index, choice in self._choices.items()}
        return held.get(0, "")

    def _take_id(self, given: str | None) -> None:
        if given and self._ids is not None:
            self._ids.check(given)

    def _take_choice(self, given: Json) -> str:
        index = optional(given, "index", int) or 0
        if not 0 <= index < self._expected_choices:
            raise MalformedResponse(f"a choice has index {index}, but {self._expected_choices} were requested")
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(split_thinking=self._split_thinking)
        reason = optional(given, "finish_reason", str) or None
        finished_before = choice.finish_reason is not None
        choice.finishes_every_chunk = choice.finishes_every_chunk and reason is not None
        piece, is_more = choice.take(given)
        if is_more and finished_before and not choice.finishes_every_chunk:
            raise MalformedResponse("more text after a finish_reason: the stream may contain two answers")
        self.pieces += is_more
        if reason in _FAILED:
            # OpenRouter says why, in the choice.
            if given.get("error") is not None:
                self._fail(given["error"])
            raise _gave_up(reason)
        choice.finish_reason = reason or choice.finish_reason
        return piece if index == 0 else ""

    def generation(self, *, allow_missing_finish: bool = False) -> Generation:
        """Return the generation, or raise if the stream had no choice or no end."""
        if not self.started:
            if self.done:
                raise MalformedResponse("the stream has no choice")
            raise Incomplete("the stream ended before the answer started")
        if not self.finished and not allow_missing_finish:
            raise Incomplete("the stream ended without a finish_reason: the answer may be cut off")
        if 0 not in self._choices:
            raise MalformedResponse("the stream lacks the first choice")
        self.finish()
        return self._generation(self._choices[0])

    def _generation(self, first: _Choice) -> Generation:
        reason = finish_reason_of(first.finish_reason or UNKNOWN_FINISH)
        reasoning = str(first.reasoning)
        return Generation(
            str(first.text),
            self.spent,
            # Gemini ends tool calls with "stop" when it streams.
            "tool_calls" if first.tool_calls and reason == "stop" else reason,
            self._model,
            reasoning=reasoning or None,
            tool_calls=first.tool_calls.calls() if first.tool_calls else (),
            thoughts=first.thoughts.thoughts(reasoning, has_calls=bool(first.tool_calls)),
            refusal=str(first.refusal) or None,
            logprobs=tuple(first.logprobs),
            raw=self._raw(first),
        )

    def _raw(self, first: _Choice) -> Json | None:
        """Return the fields of the response other than the answer: its id, and those of the server."""
        said: Json = {**(self._first_chunk or {}), **self._last_chunk, "finish_reason": first.finish_reason}
        raw = {
            name: value
            for name, value in said.items()
            if value is not None and value != "" and name not in _OF_THE_ANSWER
        }
        if self._expected_choices > 1:
            raw["choices"] = [str(self._choices[index].text) for index in sorted(self._choices)]
        return raw or None


_OF_THE_ANSWER = frozenset({"choices", "error", "obfuscation", "object"})


class _ChunkIds:
    """
    Detects a stream that mixes two answers.

    All chunks of an answer have one id or, on some servers, each has its own. So a second answer has begun
    if an earlier id comes back, or if a new id follows one that was repeated.
    """

    __slots__ = ("_last", "_repeated", "_seen")

    def __init__(self) -> None:
        self._last: str | None = None
        self._repeated = False
        self._seen: set[str] = set()

    def goes_on(self, given: str | None) -> bool:
        """Return True if a chunk with this id certainly belongs to the same answer as the one before."""
        return not given or given == self._last

    def check(self, given: str) -> None:
        if given == self._last:
            self._repeated = True
            return
        if self._repeated or given in self._seen:
            raise MalformedResponse(
                "a chunk belongs to another answer: its id differs from that of the chunks before",
                hint="If the ids of this server mean nothing, pass check_ids=False to the backend.",
            )
        self._last = given
        self._seen.add(given)


def _gave_up(reason: str) -> ServerError:
    error = ServerError(f"the server ended the answer with the finish_reason {reason!r}")
    error.maybe_billed = True
    return error


def _groq_error(chunk: Json) -> Any:
    """Return the error in a chunk of Groq, whose extension says why it stopped a stream early."""
    if chunk.get("error") is not None:
        return chunk["error"]
    groq = chunk["x_groq"]
    return cast("Json", groq).get("error") or None if isinstance(groq, dict) else None


_OTHER_USAGE_FIELDS = frozenset({"timings", "x_groq"})


def _usage_of(chunk: Json, choices: list[Json]) -> Usage | None:
    """Return the usage of a chunk: its own, that of Groq's extension, Moonshot's choice, or llama.cpp's timings."""
    given = object_or_none(chunk, "usage")
    if given is None:
        # Most chunks have none at all.
        if _OTHER_USAGE_FIELDS.isdisjoint(chunk) and not (choices and "usage" in choices[-1]):
            return None
        groq = chunk.get("x_groq")
        given = object_or_none(cast("Json", groq), "usage") if isinstance(groq, dict) else None
    if given is None and choices:
        given = object_or_none(choices[-1], "usage")
    if given is not None:
        return read_usage(given)
    timings = chunk.get("timings")
    return read_timings(cast("Json", timings)) if isinstance(timings, dict) else None


def _content(delta: Json) -> tuple[str, str, str]:
    """Return the text, the reasoning and the refusal in the content of a delta."""
    refusal = optional(delta, "refusal", str) or ""
    content = delta.get("content")
    if type(content) is str:
        return content, "", refusal
    if not isinstance(content, list):
        return optional(delta, "content", str) or "", "", refusal
    texts, thoughts = "", ""
    for part in list_of_objects(delta, "content"):
        texts += optional(part, "text", str) or ""
        thoughts += text_of_chunk(part.get("thinking"))
        refusal += optional(part, "refusal", str) or ""
    return texts, thoughts, refusal


_REASONING_FIELDS = frozenset({"reasoning", "reasoning_content", "reasoning_details", "thinking"})


def _reasoning(delta: Json) -> str:
    """Return the reasoning of a delta. Servers that give it twice repeat the same text."""
    if _REASONING_FIELDS.isdisjoint(delta):
        return ""
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(text := delta.get(name), str) and text:
            return text
    details = delta.get("reasoning_details")
    if not isinstance(details, list):
        return ""
    items = [cast("Json", item) for item in cast("list[object]", details) if isinstance(item, dict)]
    return "".join([str(item.get("text") or item.get("summary") or "") for item in items])


def _logprobs(choice: Json, text: str) -> list[Any]:
    number = choice.get("logprobs")
    if type(number) in {int, float}:
        # Together sends a number for the one token of the chunk.
        others = object_or_none(choice, "top_logprobs") or {}
        top = [{"token": token, "logprob": logprob} for token, logprob in others.items()]
        return [{"token": text, "logprob": number, "top_logprobs": top}]
    given = object_or_none(choice, "logprobs")
    if given is None:
        return []
    # The chat API has one object per token. The completions API has parallel lists, which are passed on as they are.
    return list_of_objects(given, "content") if "content" in given else [given]
