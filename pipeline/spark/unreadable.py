"""Explains which file or place Spark cannot read or write."""

import re

_FILE = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*[\w$]+: (.*)$", re.MULTILINE)
_NO_CLASS = re.compile(r"ClassNotFoundException: Class (org\.apache\.hadoop\.fs\.\S+) not found")
_NO_SCHEME = re.compile(r'No FileSystem for scheme "(.+?)"')


def problem_of(error: Exception) -> str:
    """The file or place that an error of Spark is about, the reason, and what to do; empty for other errors."""
    return _problem_of_place(str(error)) or problem_of_file(error)


def _problem_of_place(text: str) -> str:
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
    text = str(error)
    found = _FILE.search(text)
    if found is None:
        return ""
    causes = _CAUSE.findall(text)
    why = f": {causes[-1]}" if causes else ""
    summaries = found[1].rpartition("/usage_2h/")[0]
    what = f"remove {summaries}/usage_2h, which is made again" if summaries else "it is damaged, or gone"
    return f"{found[1]} cannot be read{why}; {what}"
