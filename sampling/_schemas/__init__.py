"""Classes as parsers and JSON schemas, and validation against a schema."""
