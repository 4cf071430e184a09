"""One question each: a module with `NAME`, `TITLE`, the figures `SHOWN` in its table, and `run(setting)`."""
