"""Run a fan-out on a Ray cluster. Needs the extra `ray`."""

from sampling.fanout.ray._engine import RayEngine

__all__ = ["RayEngine"]
