"""No ending that a provider has makes a part of an answer a whole one."""

from importlib import import_module
from typing import get_args

import pytest

from sampling import Generation, Options
from sampling._completeness import incomplete

WHOLE = {"STOP", "FINISH_REASON_UNSPECIFIED", "end_turn", "stop_sequence", "stop", "tool_use", "tool_calls"}
WHOLE |= {"tool_call", "function_call"}


def endings(package: str) -> list[str]:
    """Return the endings that the client of a provider knows."""
    if package == "google":
        return [reason.value for reason in import_module("google.genai.types").FinishReason]
    if package == "anthropic":
        return list(get_args(import_module("anthropic.types.beta").BetaStopReason))
    if package == "openai":
        chat = import_module("openai.types.chat.chat_completion").Choice.model_fields["finish_reason"].annotation
        responses = import_module("openai.types.responses.response").IncompleteDetails.model_fields["reason"].annotation
        return [*get_args(chat), *get_args(get_args(responses)[0])]
    if package == "pydantic-ai":
        return list(get_args(import_module("pydantic_ai.messages").FinishReason))
    session = import_module("botocore.session").get_session()
    return list(session.get_service_model("bedrock-runtime").shape_for("StopReason").enum)


def taken_for_whole(names: list[str]) -> list[str]:
    return [name for name in names if incomplete(Generation("12", finish_reason=name), Options()) is None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["google", "anthropic", "openai", "pydantic-ai", "bedrock"])
def test_every_ending_of_a_client_is_known(package):
    """S22: the client of the provider lists them, so a new one is noticed."""
    known = endings(package)
    assert len(known) > 4
    assert [name for name in known if name in WHOLE] == taken_for_whole(known)


def test_endings_that_no_client_lists_are_known():
    """S22: Gemini's API for OpenAI clients, an enum of LangChain, DeepSeek, SGLang, Zhipu, Cohere, newer clients."""
    names = ["content_filter: PROHIBITED_CONTENT", "function_call_filter: MALFORMED_FUNCTION_CALL"]
    names += ["FinishReason.MAX_TOKENS", "insufficient_system_resource", "abort", "sensitive", "network_error"]
    assert [] == taken_for_whole([*names, "ERROR_TOXIC", "TIMEOUT", "MODEL_ARMOR", "ESCALATION"])


def test_an_ending_that_nobody_knows_is_no_reason_to_reject_an_answer():
    """S22: servers invent words for a whole answer too."""
    names = ["eos", "unknown", "COMPLETE", "finished"]
    assert names == taken_for_whole(names)
