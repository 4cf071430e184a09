"""Answers derived from measured levels: the knee of a load curve, and changes between runs."""
