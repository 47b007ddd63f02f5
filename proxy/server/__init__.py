"""The running service: listeners, connections, TLS, reload, drain, and where quotas come from."""
