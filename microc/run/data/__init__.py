# SPDX-License-Identifier: Apache-2.0
"""Users' data: arrays, tables, pictures, sounds, folders of samples."""
