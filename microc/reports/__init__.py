"""What is shown: pages, pictures, tables, explanations."""
