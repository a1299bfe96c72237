"""Matrix products, and multiplication of bytes on cores without SIMD instructions."""
