"""Models that run on OpenVINO, in its own format or another one that it reads."""
