"""Who keeps the run alive: decide (core), act (adapters), join (runtime), show (cli), attack (chaos)."""
