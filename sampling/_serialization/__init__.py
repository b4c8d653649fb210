"""Errors, messages, results and any other value as plain JSON, and back."""
