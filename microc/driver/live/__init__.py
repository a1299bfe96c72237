"""A network at work on a board: runs, what they look like, the page that shows them."""
