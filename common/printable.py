"""Makes text from clients and other sources safe for a log or a terminal."""

MAX_SHOWN_CHARACTERS = 128


def printable(text: str, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """`text` with escapes for characters that are not printable, cut to at most `limit` characters."""
    if len(text) <= limit and text.isprintable():
        return text
    printable = "".join(map(_printable, text[: limit + 1]))
    return printable if len(printable) <= limit else f"{printable[: limit - 1]}…"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
