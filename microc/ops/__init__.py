"""Floor 3: operators. One file per family says everything about what its operators compute."""
