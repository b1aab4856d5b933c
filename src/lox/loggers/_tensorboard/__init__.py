"""`TensorBoardLogger`, and the event files that it writes."""
