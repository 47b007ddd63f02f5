"""General code that all packages use: files, child processes, printable text. Imports no other package of ours."""
