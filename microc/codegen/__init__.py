"""Code generation: print C, and write projects, packages and other output files."""
