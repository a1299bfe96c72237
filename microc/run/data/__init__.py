"""Data of users' own: arrays, tables, pictures, folders."""
