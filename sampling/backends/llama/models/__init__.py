"""The embedded model: small enough to ship, and weak enough that sampling strategies make a difference."""

from importlib.resources import files
from pathlib import Path

__all__ = ["EMBEDDED_MODEL"]

EMBEDDED_MODEL = Path(str(files(__name__) / "arithmetic.gguf"))
"""The GGUF file that `LlamaBackend()` loads by default."""
