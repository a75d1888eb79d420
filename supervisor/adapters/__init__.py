"""The acting part: each module is one piece of the outside world. None decides, and none imports another."""
