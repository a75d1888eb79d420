"""Faults on purpose: a seeded plan, real injectors, and an oracle that decides whether the product did right."""
