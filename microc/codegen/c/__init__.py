"""C: functions, expressions, statements, the network's source and header."""
