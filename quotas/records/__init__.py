"""Usage records and the trace: the data format between the proxy and the pipeline."""
