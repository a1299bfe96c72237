"""Products of matrices, and how bytes are multiplied on cores without SIMD."""
