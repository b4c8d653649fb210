"""Tell whole answers from those that were cut off, filtered or refused."""

from sampling._text import quoted
from sampling.messages import Generation, Options
from sampling.requirements import Requirement, Validation

__all__ = ["COMPLETE", "incomplete"]

COMPLETE = Requirement("the answer is complete", lambda _: True)

# In lower case, as OpenAI, Anthropic, Google, Bedrock, Cohere, Mistral and Ollama name them.
_CUT_OFF = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "incomplete"}
)
_FILTERED = frozenset(
    {
        "blocklist",
        "content_filter",
        "content_filtered",
        "error_toxic",
        "guardrail_intervened",
        "image_safety",
        "prohibited_content",
        "recitation",
        "safety",
        "spii",
    }
)
_ENDINGS = (
    (_CUT_OFF, "the answer was cut off at the limit of its length: give the whole answer in fewer words"),
    (_FILTERED, "the answer was stopped by a content filter: answer in other words"),
    ({"refusal"}, "the question was refused: answer it as far as possible"),
    ({"error", "malformed_function_call"}, "the answer broke off with an error: give the whole answer again"),
    # Of `ToolLoop`.
    ({"max_rounds"}, "the tools were called too often: answer now, with what is known"),
)
_LONGEST_REFUSAL = 500


def incomplete(generation: Generation, options: Options) -> Validation | None:
    """Return why an answer is not one, in words that a model can act on, or None if it is whole."""
    reason = _why_ended(generation) or _why_no_answer(generation, options)
    return None if reason is None else Validation(False, reason, requirement=COMPLETE)


def _why_ended(generation: Generation) -> str | None:
    ended = generation.finish_reason.lower()
    if generation.refusal is not None:
        return (
            f"the question was refused ({quoted(generation.refusal, _LONGEST_REFUSAL)}): answer it as far as possible"
        )
    return next((reason for reasons, reason in _ENDINGS if ended in reasons), None)


def _why_no_answer(generation: Generation, options: Options) -> str | None:
    if generation.tool_calls and not (options.tools or options.extra.get("tools")):
        names = ", ".join(dict.fromkeys([repr(call.name) for call in generation.tool_calls]))
        return f"the answer calls {names}, but there are no tools: answer with text"
    if not generation.text and not generation.tool_calls and generation.reasoning:
        return "there is only reasoning and no answer: give the answer itself"
    return None
