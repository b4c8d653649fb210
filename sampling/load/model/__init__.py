"""
The data model of a load run.

Traffic profiles (`OpenLoop`, `ClosedLoop`), workloads and mixes, `Slo` limits, the `Recording` of every request,
and the `LoadReport` that is aggregated from it. Nothing here sends traffic. Import from `sampling.load`.
"""
