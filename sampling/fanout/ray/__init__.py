"""The calls of a fan-out on a cluster. It needs the extra `ray`."""

from sampling.fanout.ray._engine import RayEngine

__all__ = ["RayEngine"]
