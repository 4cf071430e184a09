"""Answers made of measured levels: the highest load that meets an objective, the knee, what changed, and how
each figure came about."""
