"""The commands: each reads its arguments, calls what does the work, and prints. Results on stdout, talk on stderr."""
