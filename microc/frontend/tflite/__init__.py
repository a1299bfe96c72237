# SPDX-License-Identifier: Apache-2.0
"""TFLite models: checked access to the flatbuffer, and converters of its operators."""
