"""The uvloop shell: carries out what relays say and decides nothing."""
