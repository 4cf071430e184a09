"""Answers derived from measured levels: the knee of a load curve, changes between runs, and how each
figure was calculated.
"""
