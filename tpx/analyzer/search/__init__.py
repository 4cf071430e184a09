"""Search strategies: pure, deterministic, replayable; they ask for trials and are told outcomes."""
