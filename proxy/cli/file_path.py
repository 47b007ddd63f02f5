"""The type of options that name a file of this machine or at a URI."""

from pathlib import Path
from typing import Any

import click

from kafka_throttle.common.remote_path import AnyPath, path_of


class FilePath(click.Path):
    """A file, as `prices.yaml` or `s3a://bucket/prices.yaml`; on this machine it must be no directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:  # type: ignore[override]
        """A Path or a RemotePath."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            path = path_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not isinstance(path, Path):
            return path
        return super().convert(path, param, ctx)  # type: ignore[return-value]
