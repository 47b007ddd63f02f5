"""Recommends quotas from recorded use, each with its evidence: docs/recommend.md."""
