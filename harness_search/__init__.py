"""Meta-Harness: search over the programs around a model. Needs no JAX and knows no domain."""
