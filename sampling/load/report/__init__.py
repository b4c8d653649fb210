"""Reports for people: tables, files, comparisons and HTML pages."""
