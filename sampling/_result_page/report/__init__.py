"""
Build the self-contained HTML page of a report.

`markup` writes elements, `chart` draws one SVG chart, `style` is the style sheet, and `document` assembles a page.
"""
