"""
The search for the highest rate that meets an SLO.

`find_capacity` runs the steps, `judge` gives each a verdict, and `CapacityAnswer` holds the result. The verdict,
the confidence and the choice of the next rate are pure functions. Import from `sampling.load`.
"""
