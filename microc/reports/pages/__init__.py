"""HTML pages: their blocks, their pictures, and the page of a report."""
