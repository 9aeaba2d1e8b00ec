"""Found first by the runs of the tests: whatever would import PyTorch learns that there is none."""

raise ModuleNotFoundError("a run needs no torch", name="torch")
