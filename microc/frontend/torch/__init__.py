# SPDX-License-Identifier: Apache-2.0
"""Reader of PyTorch programs (``torch.export``). The bytes of a file are checked before PyTorch loads them."""
