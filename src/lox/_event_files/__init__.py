"""The event files of TensorBoard, written and read without it."""
