"""Write firmware projects: board files, protocols, manifest, samples, bill of materials."""
