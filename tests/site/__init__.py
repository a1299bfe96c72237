"""The documentation: the site builds, its links hold, its code runs, its reference is complete."""
