"""Reports: estimates, sizes, explanations, advice; as pages, pictures, tables and data."""
