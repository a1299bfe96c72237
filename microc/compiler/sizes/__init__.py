"""Networks whose sizes are open when they are compiled."""
