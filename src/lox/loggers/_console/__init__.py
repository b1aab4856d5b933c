"""`ConsoleLogger`: curves per run, views of them, and a live table or lines."""
