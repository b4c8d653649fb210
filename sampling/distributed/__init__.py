"""The calls of a fan-out on a cluster. It needs the extra `ray`."""

from sampling.distributed.ray import RayEngine

__all__ = ["RayEngine"]
