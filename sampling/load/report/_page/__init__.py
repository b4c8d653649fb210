"""
A report as one HTML page: pictures, the numbers beside them, and nothing from elsewhere.

`markup` writes elements, `chart` draws one picture, `pictures` decides what is drawn of a report,
and `page` puts it together.
"""

from sampling.load.report._page.page import render_html

__all__ = ["render_html"]
