"""Repository agents: code that hears when a model is loaded and unloaded, and may change its files before."""
