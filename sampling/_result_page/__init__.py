"""Draw a result: its lanes as SVG, and its attempts as HTML."""

from sampling._result_page._html import explain_in_html
from sampling._result_page._lanes import draw_lanes

__all__ = ["draw_lanes", "explain_in_html"]
