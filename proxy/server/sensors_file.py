"""The file in which a process that stops keeps what its sensors have measured, for the one that starts next."""

import asyncio
from pathlib import Path

import structlog

from kafka_throttle.common.atomic_file import write_whole
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.server.sensor_messages import SensorIntake, about, of_rows, unpacked
from kafka_throttle.quotas.row_copies import Copier, Sensing

log = structlog.get_logger()


async def keep(path: Path, sensing: Sensing, clock: Clock) -> None:
    """Write the rows of all sensors. If that fails, it is logged."""
    pieces = [about(sensing, clock).packed()]
    for copies in Copier(sensing).changed():
        pieces.append(of_rows(copies).packed())
        await asyncio.sleep(0)
    try:
        await asyncio.to_thread(write_whole, path, pieces)
    except OSError as error:
        log.warning("sensors_not_kept", file=str(path), problem=error.strerror or str(error))


async def take_up(path: Path, intake: SensorIntake) -> bool:
    """Continue the sensors from the file, and delete it. Returns whether there was one. What is wrong is logged."""
    try:
        data = await asyncio.to_thread(_taken, path)
        for message in unpacked(data):
            intake.take(message)
            await asyncio.sleep(0)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        log.warning("sensors_not_taken_over", file=str(path), problem=str(error))
    return True


def _taken(path: Path) -> bytes:
    data = path.read_bytes()
    path.unlink()
    return data
