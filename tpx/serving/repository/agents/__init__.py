"""Repository agents: code that is called when a model is loaded or unloaded, and that may replace its
files first.
"""
