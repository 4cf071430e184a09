"""The question of a run, its findings, and the journal that keeps both."""
