"""
Backends turn a `Request` into a `Generation`.

Each provider has a package: `anthropic`, `openai`, `llama`, and `adapters` for the client library that you already use.
`layers` wrap a backend to add retries, limits, a cache, recordings or prices. `simulated` is a server without a model.
"""
