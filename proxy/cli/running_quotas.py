"""The quotas in force in a running proxy, as its admin API shows them."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.cli.admin_client import AdminEndpoint, NoProxy, ProxyRefuses, ask
from kafka_throttle.proxy.cli.config_file import refuse
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import AdminConfig
from kafka_throttle.proxy.observe.explained import Form, limit_form
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import SCOPED, Entity, QuotaKey, Scope
from kafka_throttle.quotas.sources.entry_forms import entity_form

_TAKEN_UP_WITHIN_S = 5.0
_ASK_EVERY_S = 0.2
_PER_PAGE = 5_000


class RunningProxy:
    """The proxy that runs with a configuration, if one answers. Ends the process if its token cannot be read."""

    def __init__(self, admin: AdminConfig, path: Path, way: AdminEndpoint) -> None:
        self._way = way
        self._admin = admin
        self._path = path

    @property
    def address(self) -> str:
        """Where it is asked."""
        return str(self._way.address_of(self._admin))

    def quotas(self, virtual_cluster: str) -> Form:
        """All quotas of a virtual cluster. Raises NoProxy or ProxyRefuses."""
        form = self._page(virtual_cluster, {"limit": str(_PER_PAGE)})
        entries = list(form["quotas"])
        while len(entries) < form["total"]:
            more = self._page(virtual_cluster, {"limit": str(_PER_PAGE), "offset": str(len(entries))})
            if not more["quotas"]:
                break
            entries += more["quotas"]
        return {**form, "quotas": entries}

    def limits_of(self, virtual_cluster: str, entity: Entity) -> Mapping[str, Form]:
        """The limits of an entity by the text of their key, as `limit_form`. Raises NoProxy or ProxyRefuses."""
        form = self._page(virtual_cluster, {"entity": json.dumps(entity_form(entity))})
        return {key: limit for entry in form["quotas"] for key, limit in entry["limits"].items()}

    def _page(self, virtual_cluster: str, parameters: Mapping[str, str]) -> Form:
        try:
            return ask(self._admin, self._path, "quotas", {"virtual_cluster": virtual_cluster, **parameters}, self._way)
        except ConfigErrors as error:
            refuse(str(error))

    def report_taken_up(self, virtual_cluster: str, entity: Entity, expected: Mapping[QuotaKey, Limit | None]) -> None:
        """Wait a few seconds until these limits (None: no quota) are in force, and print on standard error how it went.

        A proxy that cannot be asked may take them up nevertheless.
        """
        deadline_s = time.monotonic() + _TAKEN_UP_WITHIN_S
        try:
            while (late := self._others_than(virtual_cluster, entity, expected)) and time.monotonic() < deadline_s:
                time.sleep(_ASK_EVERY_S)
        except NoProxy as error:
            _note(f"saved; no proxy answered at {error}, so it is not confirmed that one uses it")
        except ProxyRefuses as error:
            _note(f"saved; the proxy cannot be asked, so it is not confirmed that it uses it: {error}")
        else:
            if late:
                _note(f"warning: the proxy at {self.address} has not taken up within {_TAKEN_UP_WITHIN_S:g} s: {late}")
            else:
                _note(f"in force in the proxy at {self.address}")

    def _others_than(self, virtual_cluster: str, entity: Entity, expected: Mapping[QuotaKey, Limit | None]) -> str:
        """The keys whose limit or scope is another one in the proxy, as text."""
        limits = self.limits_of(virtual_cluster, entity)
        wanted = {key: None if limit is None else limit_form(key, limit) for key, limit in expected.items()}
        return ", ".join(
            key.text for key in wanted if _compared(key, limits.get(key.text)) != _compared(key, wanted[key])
        )


def _compared(key: QuotaKey, limit: Form | None) -> tuple[Any, Any] | None:
    """The limit and its scope. A proxy of an earlier version, which says no scope, knows only that of nodes."""
    if limit is None:
        return None
    return limit["limit"], limit.get("scope", Scope.NODE.value) if key.quota_type in SCOPED else None


def _note(text: str) -> None:
    click.echo(printable(text, 1_000), err=True)
