"""How long a test waits for what has to come, before it says that it does not come.

Any process may stand still for some seconds at any moment, and a machine may be three times slower than the one where
a test was written: so nobody waits for less, and nothing is asserted about what may take a second.
"""

TIMEOUT_S = 60.0
