"""Side-by-side measurements against git: `python -m tests.bench`."""
