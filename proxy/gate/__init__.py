"""Whether a connection may come: rates, counts, holds."""
