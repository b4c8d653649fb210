"""Observers of growing text and of requests."""
