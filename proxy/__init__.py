"""The service: listeners, relays, decisions, configuration, metrics and the command line."""
