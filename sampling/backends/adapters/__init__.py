"""Backends made of client libraries that an application uses already."""

from sampling.backends.adapters._adapters import (
    AdaptedBackend,
    from_langchain,
    from_litellm,
    from_openai_client,
    from_pydantic_ai,
)

__all__ = ["AdaptedBackend", "from_langchain", "from_litellm", "from_openai_client", "from_pydantic_ai"]
