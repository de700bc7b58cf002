"""What is to be measured: the matrix as asked for, and the cells that it comes to."""
