"""Which source the quotas of a virtual cluster come from, as its configuration says: for the service and the CLI."""

from collections.abc import Collection
from pathlib import Path

from proxy.config import ConfigError, ConfigErrors, VirtualClusterConfig, quota_entries
from quotas.entities import Entity, QuotaKey
from quotas.sources.file import FileSource
from quotas.sources.source import Alteration, Source


def source_of(config: VirtualClusterConfig, config_path: Path) -> Source:
    """The source, not started yet. ConfigErrors if there is none such; paths are relative to the configuration file."""
    if config.quotas.source != "file":
        raise ConfigErrors([ConfigError("quotas.source", f"expected 'file', got {config.quotas.source!r}")])
    state_file = config.quotas.state_file
    return FileSource(quota_entries(config), config_path.name, config_path.parent / state_file if state_file else None)


def renew(source: Source, config: VirtualClusterConfig) -> None:
    """Have a source take up what of it stands in a configuration file that has changed."""
    if isinstance(source, FileSource):
        source.replace(quota_entries(config))


def unset(source: Source, entity: Entity, keys: Collection[QuotaKey]) -> None:
    """Remove quotas; in a source with layers, their changes: they follow the operator's file again.

    Raises AlterationRefused or SourceUnavailable; then nothing has changed.
    """
    if isinstance(source, FileSource):
        source.unset(entity, keys)
        return
    [problem] = source.alter([Alteration(entity, dict.fromkeys(keys))])
    if problem is not None:
        raise problem
