"""`python -m supervisor` is the `lastgood` command."""

from supervisor.cli.app import main

main()
