"""Safe parsing of untrusted JSON."""
