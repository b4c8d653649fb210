"""TLS over memory buffers, so that the same code works for every kind of socket I/O."""

import ssl
from collections.abc import Hashable

from sampling.errors import AuthenticationFailed

__all__ = ["Tls", "TlsSettings", "refused_client"]

_ABOUT_THE_CLIENT = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)
"""Alerts of a server that does not accept the certificate of its client, or misses it."""


def refused_client(error: Exception) -> AuthenticationFailed | None:
    """Return the error for a server that refused the client's certificate, which no other try changes, else None."""
    # With TLS 1.3, the client learns of it only after the handshake, when it reads the answer.
    if not isinstance(error, ssl.SSLError) or error.reason not in _ABOUT_THE_CLIENT:
        return None
    return AuthenticationFailed(
        f"the server does not accept this client without a certificate that it trusts ({error.reason})",
        hint="Load a client certificate: ssl_context.load_cert_chain(…), and pass it as ssl_context.",
    )


class TlsSettings:
    """The verification of servers, and the sessions that shorten the next handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        context.set_alpn_protocols(["http/1.1"])
        self._sessions: dict[Hashable, ssl.SSLSession] = {}

    def wrap(self, key: Hashable, host: str) -> "Tls":
        """Return the TLS of a new connection to a host."""
        # The zone of an IPv6 address means something only on this machine, and the dot that ends a name only to DNS.
        return Tls(self, key, host.partition("%")[0].removesuffix("."))

    def session(self, key: Hashable) -> ssl.SSLSession | None:
        """Return the session of the last handshake with a server."""
        return self._sessions.get(key)

    def keep(self, key: Hashable, session: ssl.SSLSession | None) -> None:
        """Keep a session for the next handshake."""
        # A subclass may verify certificates by itself, which are not sent again when a session goes on.
        if session is not None and session.has_ticket and type(self.context) is ssl.SSLContext:
            self._sessions[key] = session


class Tls:
    """The TLS of one connection."""

    __slots__ = ("_incoming", "_key", "_object", "_outgoing", "_settings", "_wants_session", "ended")

    def __init__(self, settings: TlsSettings, key: Hashable, host: str) -> None:
        self._settings = settings
        self._key = key
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = settings.context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=host, session=settings.session(key)
        )
        self._wants_session = False
        self.ended = False
        """True once the server ended the encrypted stream."""

    def handshake(self, received: bytes | None) -> bool:
        """
        Continue the handshake, and return whether it is done.

        Raise `ssl.SSLError` if it failed. In any case there may be bytes to send.
        """
        if received is not None:
            if received:
                self._incoming.write(received)
            else:
                self._incoming.write_eof()
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._wants_session = not self._object.session_reused
        return True

    def to_send(self) -> bytes:
        """Return the bytes to send to the server."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted form of bytes."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt received bytes, which may complete nothing yet. Raise `ssl.SSLError` if they are invalid."""
        self._incoming.write(data)
        pieces: list[bytes] = []
        try:
            while self._incoming.pending or self._object.pending():
                piece = self._object.read(16_384)
                if not piece:
                    self.ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
        if pieces and self._wants_session:
            # The server sends it after the handshake, usually before its first response.
            self._wants_session = False
            self._settings.keep(self._key, self._object.session)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
