"""The command line: parses options, prints results, and returns exit codes; nothing else prints."""
