"""An HTTP/1.1 client for streamed responses: framing, a pool, TLS and connections, on asyncio and trio."""
