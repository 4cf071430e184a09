"""Models on OpenVINO: its own format, and whatever else it reads."""
