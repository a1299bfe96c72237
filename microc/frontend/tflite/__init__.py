"""TFLite models: checked access to the flatbuffer, and converters of its operators."""
