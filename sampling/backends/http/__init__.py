"""What the providers share: addresses, the transport and its connections, and server-sent events."""
