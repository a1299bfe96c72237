"""Users' data: arrays, tables, pictures, sounds, folders of samples."""
