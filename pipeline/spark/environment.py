"""Why Spark's JVM did not start: what is in the environment of this process, and does not fit."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark

_OLDEST_JAVA: Final = 17
_PATIENCE_S: Final = 20.0


def refuse_nameless_user() -> None:
    """Raise ValueError for a user id without a name: Java's login needs one, and fails with a stack trace."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ValueError(
            f"the user id {os.getuid()} has no name, and Java's login needs one: add it to /etc/passwd "
            "(in a container: run as the user of the image, or have nss_wrapper give it a name)"
        ) from None


def reasons(environment: Mapping[str, str]) -> str:
    """What in the environment may have kept the JVM from starting, in one line."""
    found = list(_reasons(environment))
    return "Spark does not start: " + ("; ".join(found) or "its JVM ended at once, for the reason that it says above")


def _reasons(environment: Mapping[str, str]) -> Iterator[str]:
    if arguments := environment.get("PYSPARK_SUBMIT_ARGS"):
        yield f"PYSPARK_SUBMIT_ARGS={arguments!r} may be for another program: unset it"
    home = environment.get("SPARK_HOME")
    own = Path(pyspark.__file__).parent
    if home and Path(home).resolve() != own.resolve():
        yield f"SPARK_HOME={home!r} is another Spark than {pyspark.__version__} of this Python: unset it"
    yield from _of_java(environment)


def _of_java(environment: Mapping[str, str]) -> Iterator[str]:
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    named = f"JAVA_HOME={home!r}" if home else "the java of the PATH"
    if java is None:
        yield f"there is no java in the PATH, and no JAVA_HOME: install Java {_OLDEST_JAVA} or later"
        return
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"{named}: {java} cannot be run ({error}): name Java {_OLDEST_JAVA} or later"
        return
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        which = "no Java that says its version" if version is None else f"Java {version[1]}"
        yield f"{named} is {which}: name Java {_OLDEST_JAVA} or later"
