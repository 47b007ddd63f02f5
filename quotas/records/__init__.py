"""Usage records and the trace: the contract between the proxy and the pipeline."""
