"""
Backends that call a client library of yours: openai, litellm, LangChain or pydantic-ai.

    backend = from_openai_client(AsyncOpenAI(), model="gpt-5-mini")
    result = await strategy.sample("A haiku about rain", None, backend)

Every request is streamed, even if you need only the whole text, because closing a stream stops the server.
Errors of the library are translated into ours, so that strategies and layers can react to them.
A library is imported only when you pass one of its objects. Your client is never closed.

Every option reaches the server, or raises `Unsupported` with its name.

The retries of each library multiply with those of a layer. The adapters for openai, litellm and most models of
pydantic-ai turn them off. Turn them off yourself for the others.
"""

from sampling.backends.adapters._adapted import AdaptedBackend
from sampling.backends.adapters._langchain import from_langchain
from sampling.backends.adapters._litellm import from_litellm
from sampling.backends.adapters._openai_client import from_openai_client
from sampling.backends.adapters._pydantic_ai import from_pydantic_ai

__all__ = ["AdaptedBackend", "from_langchain", "from_litellm", "from_openai_client", "from_pydantic_ai"]
