"""Inputs: from the user's data to requests that are ready to be sent."""
