"""The page: figures as sections of tables and plots, put into one HTML document."""
