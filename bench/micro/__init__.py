"""Small benchmarks of single modules: each prints the number its module's docstring promises."""
