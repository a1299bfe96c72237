# SPDX-License-Identifier: Apache-2.0
"""Generated code and the runtime held against MISRA C:2012 and static analysers."""
