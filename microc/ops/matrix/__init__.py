# SPDX-License-Identifier: Apache-2.0
"""Matrix products, and multiplication of bytes on cores without SIMD instructions."""
