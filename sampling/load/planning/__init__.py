"""
Predictions without traffic.

`calibrate` fits a `ServerModel` to recorded runs, `simulate` predicts a load report from it, and `plan` finds
the cheapest depth and breadth that meet an SLO. Import from `sampling.load`.
"""
