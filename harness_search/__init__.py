"""Meta-Harness: search over the programs around a model. Standard library and zstandard only; knows no domain and no JAX."""
