"""The goals of a run, its results, and the journal that stores them."""
