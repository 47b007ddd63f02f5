"""The service: listeners, relays, verdicts, configuration, metrics and the command line."""
