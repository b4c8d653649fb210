"""
Render a report as one self-contained HTML page.

`markup` writes elements, `chart` draws one SVG chart, `pictures` chooses the charts of a report,
and `page` assembles the page.
"""

from sampling.load.report._page.page import render_html

__all__ = ["render_html"]
