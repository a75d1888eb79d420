"""The deciding part: pure. No clock, files, processes or threads; only the standard library and lastgood's pure modules."""
