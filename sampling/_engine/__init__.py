"""The engine below every strategy: one call, its attempts, and the records they leave."""
