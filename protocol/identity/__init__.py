"""Who a peer says it is: PROXY headers, SASL names, distinguished names, principal rules."""
