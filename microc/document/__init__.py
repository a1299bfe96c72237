"""Documents: what commands, reports and objects show, and the forms in which it is shown."""
