"""Random programs, run compiled, by the oracle and by eager PyTorch: all three must agree."""
