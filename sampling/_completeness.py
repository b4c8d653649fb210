"""Tell complete answers from those that were cut off, filtered or refused."""

import re

from sampling._text import quoted
from sampling.messages import Generation, Options
from sampling.requirements import Requirement, Validation

__all__ = ["COMPLETE", "incomplete"]

COMPLETE = Requirement("the answer is complete", lambda _: True)

# In lower case, as OpenAI, Anthropic, Google, Bedrock, Cohere, Mistral and Ollama name them.
_CUT_OFF = frozenset(
    {
        "continuation",
        "incomplete",
        "length",
        "limit",
        "max_messages",
        "max_output_tokens",
        "max_tokens",
        "model_context_window_exceeded",
        "model_length",
        "time_limit",
        "token_limit",
    }
)
# A server paused, or someone stopped it, before the answer was whole.
_BROKEN_OFF = frozenset(
    {
        "abort",
        "aborted",
        "cancelled",
        "compaction",
        "error",
        "escalation",
        "image_other",
        "insufficient_system_resource",
        "language",
        "malformed_function_call",
        "malformed_model_output",
        "malformed_response",
        "malformed_tool_use",
        "missing_thought_signature",
        "network_error",
        "no_image",
        "other",
        "pause_turn",
        "pup_limited_disabled",
        "repetition",
        "steered",
        "timeout",
        "too_many_tool_calls",
        "unexpected_tool_call",
        "user_cancel",
    }
)
_FILTERED = frozenset(
    {
        "blocklist",
        "content_filter",
        "content_filtered",
        "error_toxic",
        "guardrail_intervened",
        "image_prohibited_content",
        "image_recitation",
        "image_safety",
        "model_armor",
        "prohibited_content",
        "recitation",
        "safety",
        "sensitive",
        "spii",
    }
)
_ENDINGS = (
    (_CUT_OFF, "the answer was cut off at the limit of its length: give the whole answer in fewer words"),
    (_FILTERED, "the answer was stopped by a content filter: answer in other words"),
    ({"refusal"}, "the question was refused: answer it as far as possible"),
    (_BROKEN_OFF, "the answer broke off with an error: give the whole answer again"),
    # Of `ToolLoop`.
    ({"max_rounds"}, "the tools were called too often: answer now, with what is known"),
)
_LONGEST_REFUSAL = 500


def incomplete(generation: Generation, options: Options, *, accepted: bool = False) -> Validation | None:
    """
    Return why an answer is incomplete, in words that a model can act on, or None if it is complete.

    `accepted` answers may be, except for a call without any text of a tool that was not offered, which is no answer.
    """
    if accepted:
        reason = None if generation.text else _why_no_call(generation, options)
    else:
        reason = _why_ended(generation) or _why_no_call(generation, options) or _why_no_answer(generation)
    return None if reason is None else Validation(False, reason, requirement=COMPLETE)


def _why_ended(generation: Generation) -> str | None:
    if generation.refusal is not None:
        return (
            f"the question was refused ({quoted(generation.refusal, _LONGEST_REFUSAL)}): answer it as far as possible"
        )
    ended = generation.finish_reason
    return None if ended == "stop" else next((reason for names, reason in _ENDINGS if names & _names(ended)), None)


def _names(finish_reason: str) -> set[str]:
    """Return the names in a finish_reason: Gemini also gives "content_filter: SAFETY", and a library an enum."""
    return {name.strip() for name in re.split("[:.]", finish_reason.lower())}


def _why_no_call(generation: Generation, options: Options) -> str | None:
    if not generation.tool_calls or options.tools or options.extra.get("tools"):
        return None
    names = ", ".join(dict.fromkeys([repr(call.name) for call in generation.tool_calls]))
    return f"the answer calls {names}, but there are no tools: answer with text"


def _why_no_answer(generation: Generation) -> str | None:
    if not generation.text and not generation.tool_calls and generation.reasoning:
        return "there is only reasoning and no answer: give the answer itself"
    return None
