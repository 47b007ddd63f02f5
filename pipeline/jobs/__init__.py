"""The work that one command asks for, one module and one main() each."""
