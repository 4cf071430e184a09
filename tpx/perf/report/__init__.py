"""A run's results as text, CSV and JSON; nothing here prints or writes."""
