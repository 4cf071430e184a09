"""What samples can tell and what they cannot: intervals, tests, resampling, with numpy alone."""
