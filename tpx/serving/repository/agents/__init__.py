"""Repository agents: code that is called when a model is loaded or unloaded, and may replace its files."""
