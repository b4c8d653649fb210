"""
Backends turn a `Request` into a `Generation`.

Each provider has a package of its own: `openai`, `llama`, and `adapters` for client libraries that you use already.
`layers` wrap a backend: retries, limits, caches, recordings, prices. `simulated` is a model server without a model.
"""
