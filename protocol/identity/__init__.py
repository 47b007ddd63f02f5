"""The identity that a peer claims: PROXY headers, SASL names, distinguished names, principal rules."""
