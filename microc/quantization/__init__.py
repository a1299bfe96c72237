"""From a float network to an integer one that is as good."""
