"""Decides whether a client connection is admitted: connection rates, connection counts, holds."""
