# SPDX-License-Identifier: Apache-2.0
"""What TVM's courses and tutorials build, written as our documentation tells users who come from TVM: one file a subject."""
