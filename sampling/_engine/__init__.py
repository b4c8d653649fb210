"""The engine of every strategy: calls, attempts and their records."""
