"""
Render the run in a journal as one self-contained HTML page.

`timeline` counts outcomes over time, `findings` reads the journal in bounded memory, `pictures` draws the charts,
`attempts` shows the attempts of an item, and `page` assembles the page.
"""

from sampling.fanout.journal._page.findings import read_findings
from sampling.fanout.journal._page.page import render_findings

__all__ = ["read_findings", "render_findings"]
