"""Processes that run code nobody trusts: backends, limits, the harness worker, and the check of it all."""
