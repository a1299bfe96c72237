# SPDX-License-Identifier: Apache-2.0
"""Write firmware projects: board files, protocols, manifest, samples, bill of materials."""
