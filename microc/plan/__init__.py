# SPDX-License-Identifier: Apache-2.0
"""Static memory planning: an order of the calls, and an offset in the arena for every tensor."""
