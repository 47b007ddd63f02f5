"""The configuration file: models, checks, loading."""
