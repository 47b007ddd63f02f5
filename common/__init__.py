"""What every room needs and no domain owns: files, child processes, text of strangers. Imports nothing of ours."""
