"""The picture in the documentation is made of real runs, and of these ones."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_picture_of_coordinated_omission_is_what_the_runs_show():
    """Draw it again: to the byte. `python .ci/draw_coordinated_omission.py` writes it."""
    spec = importlib.util.spec_from_file_location("drawing", ROOT / ".ci" / "draw_coordinated_omission.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    assert drawing.PICTURE.read_text("utf-8") == drawing.draw()
