"""
Reports for people.

Tables for the terminal, JSON, CSV and HTML files, and the comparison of two reports. Import from `sampling.load`.
"""
