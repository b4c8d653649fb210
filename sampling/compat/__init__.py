"""Adapters for programs that are built on another framework, one module for each."""
