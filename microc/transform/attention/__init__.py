"""Attention by heads and blocks of queries, so that no more than a block of its scores is ever in memory."""
