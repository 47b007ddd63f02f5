"""Recommends quotas from recorded use, each with its evidence: docs/reference/recommend.md."""
