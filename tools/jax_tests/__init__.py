"""Parts of run_jax_tests.py: what to run, the replacement, the comparison, known differences."""
