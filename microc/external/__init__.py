"""Floor 5: parts of a network that somebody else's code computes. ``backend`` says what a backend is, ``partition`` which parts
it gets, ``kernel`` what becomes of its C, and a file for each backend of the wheel.
"""
