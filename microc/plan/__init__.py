"""Static memory planning."""
