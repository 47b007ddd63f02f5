"""Errors of Spark, and the explanation of those about a file, a place or the jars of one."""

import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)
"""What Spark raises. Without Spark Connect an error of Java that PySpark does not know is one of Py4J."""

_FILE = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*[\w$]+: (.*)$", re.MULTILINE)
_NO_CLASS = re.compile(r"ClassNotFoundException: Class (org\.apache\.hadoop\.fs\.\S+) not found")
_NO_DELTA = re.compile(r"DATA_SOURCE_NOT_FOUND\W.*\bdelta\b|DELTA_CONFIGURE_SPARK_SESSION", re.IGNORECASE)
_NO_SCHEME = re.compile(r'No FileSystem for scheme "(.+?)"')


def problem_of(error: Exception) -> str:
    """The file or place that an error of Spark is about, the reason, and what to do; empty for other errors."""
    return _problem_of_place(str(error)) or problem_of_file(error)


def _problem_of_place(text: str) -> str:
    if _NO_DELTA.search(text):
        return "this Spark was started without Delta Lake: see docs/reference/pipeline-on-a-cluster.md"
    if found := _NO_SCHEME.search(text):
        return f"Spark knows no file system for {found[1]}:"
    if found := _NO_CLASS.search(text):
        return (
            f"Spark lacks the jars of this file system ({found[1]}): name them with --conf spark.jars.packages=..., as "
            "org.apache.hadoop:hadoop-aws in the version of Spark's Hadoop for s3a:"
        )
    return ""


def problem_of_file(error: Exception) -> str:
    """As `problem_of`, of files only."""
    file = file_of(error)
    return f"{file} cannot be read: {cause_of(error)}; it is damaged, or gone" if file else ""


def file_of(error: Exception) -> str:
    """The URI of the file that Spark could not read; empty for other errors."""
    found = _FILE.search(str(error))
    return found[1] if found else ""


def cause_of(error: Exception) -> str:
    """The first cause of an error, in one line."""
    text = str(error)
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else text.splitlines()[0]
