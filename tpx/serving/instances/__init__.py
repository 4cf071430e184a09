"""Where batches are computed: instances of a model, and how their results come back to the event loop."""
