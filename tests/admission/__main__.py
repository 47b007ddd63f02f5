"""Kafka's own cases of connection quotas on a real broker and on the proxy: python -m tests.admission

Prints a table of counts; exit status 1 if the two differ where they should not.
"""

import sys
from contextlib import ExitStack

from tests.admission.cases import CASES, results
from tests.admission.sides import both


def main() -> None:
    """As the head of this file says."""
    good = True
    with ExitStack() as stack:
        sides = both(stack)
        print("| case | by Kafka's arithmetic | broker 3.9.2 | kafka-throttle |\n|---|---|---|---|")
        for case in CASES:
            counts = results(case, sides)
            good = good and all(case.agrees(of_side) for of_side in counts.values())
            reported = " | ".join(", ".join(map(str, of_side)) for of_side in (case.expected, *counts.values()))
            print(f"| {case.name} | {reported} |", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
