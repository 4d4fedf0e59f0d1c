"""Training callbacks from YAML."""
