"""The settings that all backends for HTTP APIs share."""

import inspect

import pytest

from sampling import AnthropicBackend, GeminiBackend, OpenAIBackend
from sampling.backends.http._chat_backend import ChatBackend
from sampling.backends.http._settings import SYNONYMS, HttpSettings

BACKENDS = [AnthropicBackend, GeminiBackend, OpenAIBackend]


def test_the_typed_settings_are_the_ones_that_the_base_class_takes():
    """Editors show no setting that is refused, and hide none that is taken."""
    parameters = inspect.signature(ChatBackend.__init__).parameters.values()
    taken = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert list(HttpSettings.__annotations__) == taken
    assert set(SYNONYMS.values()) <= set(taken)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("given", "meant"), [("timeout", "timeout_s"), ("max_conections", "max_connections"), ("verify", "ssl_context")]
)
def test_an_unknown_setting_is_an_error_that_suggests_the_right_one(backend, given, meant):
    """The error names the class, and not its base."""
    with pytest.raises(TypeError, match=rf"^{backend.__name__}\(\) got .* {given!r}. Did you mean {meant!r}\?$"):
        backend(model="m", api_key="k", **{given: 1})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unknown_setting_without_a_likeness_lists_all(backend):
    """Settings that only the base class takes are not listed."""
    with pytest.raises(TypeError, match=r"It takes allow_http, .* trust_env\.$") as raised:
        backend(model="m", api_key="k", quux=1)
    assert "provider" not in str(raised.value)
