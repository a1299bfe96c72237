"""TFLite models: the flatbuffer checked, operators spelled in ours."""
