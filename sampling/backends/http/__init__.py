"""The HTTP parts that providers share: addresses, transport and server-sent events."""
