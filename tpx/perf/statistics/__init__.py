"""Confidence intervals, tests and resampling, using only numpy."""
