"""The values of a load run: traffic profiles, workloads, limits, recordings and the report made of them."""
