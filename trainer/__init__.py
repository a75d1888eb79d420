"""A nanoGPT-style GPT and its training loop, flat and readable, saving through `lastgood`."""
