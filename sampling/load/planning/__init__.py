"""Predictions without traffic: a model of a server, calibrated on a recording, and simulated."""
