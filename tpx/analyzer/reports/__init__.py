"""Tables, files and pages, each a pure function of a run."""
