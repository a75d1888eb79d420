"""Sends one message through Apprise. Run by path in a process of its own, so that the supervisor stays small and alive.

Reads {"url", "title", "body", "type"} as JSON from its input; with a url alone it sends nothing. Exit status 0: fine; 3: no
apprise; 4: not a URL that it knows; 5: not taken.
"""

import importlib
import json
import sys


def main() -> int:
    """Send the message; returns the exit status."""
    job = json.load(sys.stdin)
    try:
        apprise = importlib.import_module("apprise")
    except ImportError:
        return 3
    service = apprise.Apprise()
    if not service.add(job["url"]):
        return 4
    if "body" not in job:
        return 0
    return 0 if service.notify(title=job["title"], body=job["body"], notify_type=job["type"]) else 5


if __name__ == "__main__":
    sys.exit(main())
