"""The command line: flags in, exit status out; the only place that prints."""
