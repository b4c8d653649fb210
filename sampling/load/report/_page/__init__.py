"""
Render a report as one self-contained HTML page.

`pictures` chooses the charts of a report, and `page` assembles the page from `sampling._result_page.report`.
"""

from sampling.load.report._page.page import render_html

__all__ = ["render_html"]
