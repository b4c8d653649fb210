"""The interface between backends and HTTP clients."""

from sampling._http.wire import CLOSE_GRACE_S, SharedHeaders, Transport, WireRequest, WireResponse

__all__ = ["CLOSE_GRACE_S", "SharedHeaders", "Transport", "WireRequest", "WireResponse"]
