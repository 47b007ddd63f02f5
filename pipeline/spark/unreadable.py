"""Explains which file of a table Spark cannot read."""

import re

_FILE = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*[\w$]+: (.*)$", re.MULTILINE)


def problem_of_file(error: Exception) -> str:
    """The file that an error of Spark is about, the reason, and what to do; empty for other errors."""
    text = str(error)
    found = _FILE.search(text)
    if found is None:
        return ""
    causes = _CAUSE.findall(text)
    why = f": {causes[-1]}" if causes else ""
    summaries = found[1].rpartition("/_summaries/")[0]
    what = f"remove {summaries}/_summaries, which is made again" if summaries else "it is damaged, or gone"
    return f"{found[1]} cannot be read{why}; {what}"
