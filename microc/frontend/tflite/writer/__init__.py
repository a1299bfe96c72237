"""Quantised graphs of ours as TFLite models: ``layers`` says what an operator is there, ``model`` makes a flatbuffer of it."""
