"""`ConsoleLogger`."""
