"""The addresses of OpenAI's APIs, at OpenAI and at Azure."""

from typing import Literal, TypeAlias
from urllib.parse import quote

__all__ = ["PATHS", "Endpoint", "endpoint_url"]

Endpoint: TypeAlias = Literal["chat", "completions", "responses"]
"""The API to use: chat and responses take a conversation, completions continues a text."""

PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}


def endpoint_url(base_url: str, endpoint: Endpoint, *, api_version: str | None, model: str) -> str:
    """
    Return the URL to send a request to.

    With an `api_version` it is Azure's, which has the name of the deployment in its path.
    """
    path = PATHS[endpoint]
    if api_version is None:
        return f"{base_url}{path}"
    return f"{_azure_base(base_url, endpoint, model)}{path}?api-version={quote(api_version, safe='')}"


def _azure_base(base_url: str, endpoint: Endpoint, model: str) -> str:
    # Azure's newer API and the address of one deployment, as its portal shows it, are complete.
    if base_url.endswith("/v1") or "/deployments/" in base_url:
        return base_url
    base = base_url if base_url.endswith("/openai") else f"{base_url}/openai"
    # Responses have the deployment in the body only.
    return base if endpoint == "responses" else f"{base}/deployments/{quote(model, safe='')}"
