"""`TensorBoardLogger`."""
