"""Intervals, tests and resampling with numpy alone."""
