"""The commands' work: one module with one main() for each command."""
