"""The search for the highest rate that meets an SLO: steps, verdicts and the answer."""
