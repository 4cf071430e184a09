"""Scraping a server's metrics page during a measurement."""
