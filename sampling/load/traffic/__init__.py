"""The load generator: sends arrivals on time, in open and closed loops, in one process or several."""
