"""Which changes of the configuration a running proxy takes up, and which wait for a restart."""

from kafka_throttle.proxy.config.settings import Config, ListenerConfig, ServerTlsConfig, VirtualClusterConfig


def needs_restart(setting: str) -> bool:
    """Whether a change of the setting, as "virtual_clusters[].name", waits for a restart."""
    if setting.startswith(Config.LIVE_AFTER_ALL):
        return False
    return any(setting == fixed or setting.startswith((f"{fixed}.", f"{fixed}[")) for fixed in Config.NEEDS_RESTART)


def changes_needing_restart(old: Config, new: Config) -> list[str]:
    """Paths, in the new file, of changes that a running proxy cannot take up; everything else it can.

    Virtual clusters and listeners are told apart by name, so their order in the file does not matter.
    """
    changes = []
    before = {cluster.name: (i, cluster) for i, cluster in enumerate(old.virtual_clusters)}
    for i, cluster in enumerate(new.virtual_clusters):
        known = before.pop(cluster.name, None)
        if known is None:
            changes.append(f"virtual_clusters[{i}]: added")
        else:
            changes += _listener_changes(f"virtual_clusters[{i}]", known[1], cluster)
            changes += _fixed_changes(f"virtual_clusters[{i}]", known[1], cluster)
    changes += [f"virtual_clusters[{i}]: removed" for i, _ in before.values()]
    for section in ("admin", "metrics"):
        changes += _tls_changes(f"{section}.tls", getattr(old, section).tls, getattr(new, section).tls)
    changes += ["workers"] if old.workers != new.workers else []
    for path in sorted(Config.NEEDS_RESTART):
        section, _, name = path.partition(".")
        if name and section in Config.model_fields:
            changes += [path] if getattr(getattr(old, section), name) != getattr(getattr(new, section), name) else []
    return changes


def _fixed_changes(path: str, old: VirtualClusterConfig, new: VirtualClusterConfig) -> list[str]:
    """Settings of a section of a virtual cluster that wait for a restart."""
    changes = [f"{path}.fleet"] if old.fleet != new.fleet else []
    for fixed in sorted(Config.NEEDS_RESTART):
        _, _, setting = fixed.partition("virtual_clusters[].")
        section, _, name = setting.partition(".")
        if name and getattr(getattr(old, section), name) != getattr(getattr(new, section), name):
            changes.append(f"{path}.{setting}")
    return changes


def _listener_changes(path: str, old: VirtualClusterConfig, new: VirtualClusterConfig) -> list[str]:
    changes = []
    before = {listener.name: (i, listener) for i, listener in enumerate(old.listeners)}
    for i, listener in enumerate(new.listeners):
        known = before.pop(listener.name, None)
        where = f"{path}.listeners[{i}]"
        if known is None:
            changes.append(f"{where}: added")
        else:
            fields = [f for f in ListenerConfig.model_fields if needs_restart(f"virtual_clusters[].listeners[].{f}")]
            changes += [f"{where}.{f}" for f in fields if getattr(known[1], f) != getattr(listener, f)]
            changes += _tls_changes(f"{where}.tls", known[1].tls, listener.tls)
    return changes + [f"{path}.listeners[{i}]: removed" for i, _ in before.values()]


def _tls_changes(path: str, old: ServerTlsConfig | None, new: ServerTlsConfig | None) -> list[str]:
    """A line less in the file must not have a port speak plain."""
    return [] if (old is None) == (new is None) else [f"{path}: {'removed' if new is None else 'added'}"]
